// All segments of the moment as strips, one per pool, packed into rows like words into lines, as in
// allocsim/report/packing.py.

const ROW = 16, ROW_GAP = 3, ROWS = 6, LEAST_SEGMENT = 3, SEGMENT_GAP = 1;
const strip = { pieces: [], at: -1, ranges: [], width: 0 };

const segmentWidth = (size, scale) => Math.max(Math.round(size * scale), LEAST_SEGMENT);

function stripScale(sizes, width) {
  const least = sizes.length * (LEAST_SEGMENT + SEGMENT_GAP);
  const room = Math.max(ROWS, Math.ceil((2 * least) / width)) * width;
  let low = 0, high = room / Math.max(sizes.reduce((sum, size) => sum + size, 0), 1);
  for (let i = 0; i < 40; i++) {
    const middle = (low + high) / 2;
    const total = sizes.reduce((sum, size) => sum + segmentWidth(size, middle) + SEGMENT_GAP, 0);
    if (total > room) high = middle;
    else low = middle;
  }
  return low;
}

// By pool, the default pools first; within a pool the largest segments first.
function poolsOf(ranges) {
  const pools = new Map();
  for (const range of [...ranges].sort((a, b) => b.size - a.size || a.place - b.place)) {
    if (!pools.has(range.group)) pools.set(range.group, []);
    pools.get(range.group).push(range);
  }
  const rank = (group) => data.groups[group].split(",").length;
  return [...pools].sort(([a], [b]) => rank(a) - rank(b) || COLLATOR.compare(data.groups[a], data.groups[b]));
}

const bytesIn = (ranges, name) => sizeText(ranges.reduce((sum, range) => sum + range[name], 0) * data.unit);

function poolText(group, ranges) {
  const waiting = ranges.some((range) => range.waiting) ? `, ${bytesIn(ranges, "waiting")} waiting` : "";
  return `${data.groups[group]}: ${bytesIn(ranges, "size")} in ${plural(ranges.length, "segment")}, ` +
    `${bytesIn(ranges, "allocated")} allocated${waiting}, ${bytesIn(ranges, "free")} free`;
}

// For each column of a segment, the allocated share and the pending share.
function sharesOf(range, wide, entry) {
  const { place, size, freed } = data.blocks;
  const shares = [new Float64Array(wide), new Float64Array(wide)];
  const scale = wide / range.size;
  for (const i of range.blocks) {
    const share = shares[entry < freed[i] ? 0 : 1];
    const left = (place[i] - range.place) * scale, right = left + size[i] * scale;
    for (let x = Math.floor(left); x < Math.min(right, wide); x++) share[x] += Math.min(right, x + 1) - Math.max(left, x);
  }
  return shares;
}

const seenHeight = (share) => (share > 0 ? Math.max(Math.round(share * ROW), 1) : 0);

// Equal neighbouring columns are one rectangle; otherwise seams would be printed.
function drawSegment(context, piece, width, entry, paints) {
  const ratio = devicePixelRatio || 1;
  const [allocated, waiting] = sharesOf(piece.range, piece.wide, entry).map((share) => [...share].map(seenHeight));
  const row = (x) => Math.floor((piece.at + x) / width);
  for (let x = 0, end = 0; x < piece.wide; x = end) {
    end = x + 1;
    while (end < piece.wide && allocated[end] === allocated[x] && waiting[end] === waiting[x] && row(end) === row(x)) end++;
    const lower = Math.min(allocated[x], ROW), upper = Math.min(waiting[x], ROW - lower);
    const left = (piece.at + x) % width, top = row(x) * (ROW + ROW_GAP);
    for (const [paint, from, high] of [[paints[2], 0, ROW - lower - upper], [paints[1], ROW - lower - upper, upper], [paints[0], ROW - lower, lower]]) {
      if (!high) continue;
      context.fillStyle = paint;
      context.fillRect(left * ratio, (top + from) * ratio, (end - x) * ratio, high * ratio);
    }
  }
}

function drawStrip(ranges, entry) {
  const box = document.getElementById("state-strip");
  const width = Math.max(box.clientWidth, 100), ratio = devicePixelRatio || 1;
  const scale = stripScale(ranges.map((range) => range.size), width);
  const paints = ["kind-0", "kind-1", "free"].map(colour);
  Object.assign(strip, { pieces: [], at: -1, ranges, width: box.clientWidth });
  sayPiece(null);
  box.replaceChildren(...poolsOf(ranges).map(([group, own]) => {
    const canvas = element("canvas", { className: "strip" });
    let at = 0;
    const pieces = own.map((range) => {
      const piece = { range, canvas, at, wide: segmentWidth(range.size, scale), width };
      at += piece.wide + SEGMENT_GAP;
      return piece;
    });
    const high = Math.ceil(at / width) * (ROW + ROW_GAP);
    Object.assign(canvas, { width: width * ratio, height: high * ratio });
    Object.assign(canvas.style, { width: `${width}px`, height: `${high}px` });
    const context = canvas.getContext("2d");
    for (const piece of pieces) drawSegment(context, piece, width, entry, paints);
    strip.pieces.push(...pieces);
    return element("figure", { className: "pool" }, element("figcaption", { textContent: poolText(group, own) }), canvas);
  }));
}

// Draw at the current width of the page.
function redrawStrip() {
  if (document.getElementById("state-strip").clientWidth !== strip.width) drawStrip(strip.ranges, view.entry);
}

function pieceAt(event) {
  const { canvas, x, y } = { canvas: event.target, x: event.offsetX, y: event.offsetY };
  return strip.pieces.findIndex((piece) => {
    const at = Math.floor(y / (ROW + ROW_GAP)) * piece.width + x;
    return piece.canvas === canvas && piece.at <= at && at < piece.at + piece.wide + SEGMENT_GAP;
  });
}

function sayPiece(piece) {
  document.getElementById("strip-text").textContent = piece
    ? `${hex(addressOf(piece.range.place))}: ${poolText(piece.range.group, [piece.range])}; largest free block ${sizeText(piece.range.largest * data.unit)}`
    : "Point at a segment, or move by arrow keys; click or Enter shows it on the map.";
}

function goToPiece(at) {
  if (!strip.pieces.length) return;
  strip.at = Math.min(Math.max(at, 0), strip.pieces.length - 1);
  sayPiece(strip.pieces[strip.at]);
}

// The segment's addresses over the full height of the map.
function showPiece(at) {
  const piece = strip.pieces[at];
  if (piece) goTo("map", canvas, () => setY(piece.range.place, piece.range.place + piece.range.size));
}

function listenToStrip() {
  const box = document.getElementById("state-strip");
  box.addEventListener("pointermove", (event) => sayPiece(strip.pieces[pieceAt(event)]));
  box.addEventListener("pointerleave", () => sayPiece(strip.pieces[strip.at]));
  box.addEventListener("click", (event) => showPiece(pieceAt(event)));
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return; // shortcuts of the browser
    const actions = {
      ArrowRight: () => goToPiece(strip.at + 1), ArrowLeft: () => goToPiece(strip.at - 1),
      Home: () => goToPiece(0), End: () => goToPiece(strip.pieces.length - 1), Enter: () => showPiece(strip.at),
    };
    if (!actions[event.key]) return;
    actions[event.key]();
    event.preventDefault();
  });
}
