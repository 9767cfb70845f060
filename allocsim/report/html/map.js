// The address map: the exact share of each pixel that each kind of block covers, as in
// allocsim/analysis/picture/address_map.py; tones as in allocsim/report/figures/canvas.py.

const LEAST = 0.25;
const MOST = 0.9;
const TRACE = 1e-4;
const MOST_OWNERS = 6;
let crosshair = null;
let moving = false;
let grid = new Float64Array(0);
let painted = { key: "", image: null };

const canvas = document.getElementById("map-canvas");

function kindsOf(colouring) {
  if (colouring === "size") return data.sizes.map((name, i) => [name, colour(`size-${i}`)]);
  if (colouring === "owner") {
    const names = data.owners.length <= MOST_OWNERS + 1 ? data.owners : [...data.owners.slice(0, MOST_OWNERS), "other lines"];
    return names.map((name, i) => [short(name), colour(`kind-${i}`)]);
  }
  if (colouring === "category") return data.categories.map(({ name }, i) => [name, categoryColour(i)]);
  return [["allocated", colour("kind-0")], ["freed, waiting for a stream", colour("kind-1")]];
}

// Bytes of each kind after the chosen entry, and reserved and free bytes.
function bytesOfKinds(colouring, kinds) {
  const { blocks, segments } = data;
  const entry = view.entry, held = new Array(kinds).fill(0);
  const kind = { size: blocks.class, owner: blocks.owner, category: blocks.category }[colouring];
  let free = 0;
  for (let i = 0; i < segments.count; i++) if (segments.born[i] <= entry && entry < segments.died[i]) free += segments.size[i];
  for (let i = 0; i < blocks.count; i++) {
    if (blocks.born[i] > entry || entry >= blocks.completed[i]) continue;
    held[kind ? Math.min(kind[i], kinds - 1) : Number(entry >= blocks.freed[i])] += blocks.size[i];
    free -= blocks.size[i];
  }
  return { held: held.map((size) => size * data.unit), free: free * data.unit };
}

function rgb(paint) {
  return [1, 3, 5].map((i) => parseInt(paint.slice(i, i + 2), 16));
}

// Sixteen additions per block; two running sums convert them to shares.
function splat(base, stride, left, right, low, high) {
  const x0 = Math.floor(left), x1 = Math.floor(right), y0 = Math.floor(low), y1 = Math.floor(high);
  const fx0 = left - x0, fx1 = right - x1, fy0 = low - y0, fy1 = high - y1;
  for (const [row, weight] of [[y0, 1 - fy0], [y0 + 1, fy0], [y1, fy1 - 1], [y1 + 1, -fy1]]) {
    if (weight === 0) continue;
    const at = base + row * stride;
    grid[at + x0] += weight * (1 - fx0);
    grid[at + x0 + 1] += weight * fx0;
    grid[at + x1] -= weight * (1 - fx1);
    grid[at + x1 + 1] -= weight * fx1;
  }
}

function splatAll(layer, rows, columns, lives, from, to, wanted) {
  const stride = columns + 2;
  const base = layer * stride * (rows + 2);
  const sx = columns / (view.x1 - view.x0);
  const sy = rows / (view.y1 - view.y0);
  const { place, size, count: n } = lives;
  for (let i = 0; i < n; i++) {
    if (wanted && !wanted(i)) continue;
    if (to[i] <= view.x0 || from[i] >= view.x1 || to[i] <= from[i]) continue;
    const low = place[i], high = low + size[i];
    if (high <= view.y0 || low >= view.y1) continue;
    splat(base, stride, Math.max((from[i] - view.x0) * sx, 0), Math.min((to[i] - view.x0) * sx, columns),
      Math.max((low - view.y0) * sy, 0), Math.min((high - view.y0) * sy, rows));
  }
}

function shares(rows, columns, colouring, kinds) {
  const cells = (rows + 2) * (columns + 2) * (kinds + 1);
  if (grid.length === cells) grid.fill(0);
  else grid = new Float64Array(cells);
  const { blocks, segments } = data;
  splatAll(0, rows, columns, segments, across(segments, "born"), across(segments, "died"));
  const [born, freed, completed] = ["born", "freed", "completed"].map((name) => across(blocks, name));
  if (colouring === "state") {
    splatAll(1, rows, columns, blocks, born, freed);
    splatAll(2, rows, columns, blocks, freed, completed);
    return;
  }
  const kind = { size: blocks.class, owner: blocks.owner, category: blocks.category }[colouring];
  for (let k = 0; k < kinds; k++) {
    splatAll(k + 1, rows, columns, blocks, born, completed, (i) => Math.min(kind[i], kinds - 1) === k);
  }
}

function paintPixels(image, rows, columns, paints) {
  const layers = paints.length + 1;
  const stride = columns + 2;
  const sums = new Float64Array(layers * columns);
  const page = rgb(colour("page")), free = rgb(colour("free"));
  const share = new Float64Array(layers);
  for (let row = 0; row < rows; row++) {
    for (let layer = 0; layer < layers; layer++) {
      const at = (layer * (rows + 2) + row) * stride;
      let run = 0;
      for (let x = 0; x < columns; x++) sums[layer * columns + x] += run += grid[at + x];
    }
    let out = (rows - 1 - row) * columns * 4;
    for (let x = 0; x < columns; x++, out += 4) {
      let used = 0;
      for (let layer = 0; layer < layers; layer++) {
        share[layer] = sums[layer * columns + x];
        if (layer) used += share[layer];
      }
      const reserved = Math.min(Math.max(share[0], used), 1);
      let shown = used > TRACE && used < LEAST ? LEAST : used;
      if (reserved - used > TRACE && shown > MOST) shown = MOST;
      const scale = used > TRACE ? shown / used : 0;
      const rest = Math.max(reserved - shown, 0), nothing = Math.max(1 - rest - shown, 0);
      for (let c = 0; c < 3; c++) {
        let value = rest * free[c] + nothing * page[c];
        for (let layer = 1; layer < layers; layer++) value += share[layer] * scale * paints[layer - 1][c];
        image[out + c] = value;
      }
      image[out + 3] = 255;
    }
  }
}

// The canvas is directly below the timeline's plot area, so that both share the horizontal axis.
function fitMap() {
  const left = plot.bbox.left / devicePixelRatio;
  canvas.style.marginLeft = `${left}px`;
  canvas.style.width = `${plot.bbox.width / devicePixelRatio}px`;
  const low = view.y0 * data.unit, high = view.y1 * data.unit;
  const unit = unitOf(high - low);
  const labels = splitsOf(low, high, unit[1], 5).map((at) => {
    const label = element("span", { textContent: (at / unit[1]).toLocaleString("en-US") });
    label.style.bottom = `${((at - low) / (high - low)) * 100}%`;
    return label;
  });
  const gutter = document.getElementById("map-axis");
  gutter.style.width = `${left}px`;
  gutter.replaceChildren(element("b", { textContent: `address, gaps removed (${unit[0]})` }), ...labels);
}

// A new moment or block changes only the marks; the map below them is kept.
function imageOf(context, rows, columns, colouring, kinds) {
  const key = [view.timed, view.x0, view.x1, view.y0, view.y1, rows, columns, colouring, colour("page")].join();
  if (painted.key !== key) {
    const pixels = context.createImageData(columns, rows);
    shares(rows, columns, colouring, kinds.length);
    paintPixels(pixels.data, rows, columns, kinds.map(([, paint]) => rgb(paint)));
    // Pixels set with putImageData are not printed; a drawn image is.
    const image = element("canvas", { width: columns, height: rows });
    image.getContext("2d").putImageData(pixels, 0, 0);
    painted = { key, image };
  }
  return painted.image;
}

function drawMap() {
  fitMap();
  const ratio = moving ? 0.5 : Math.min(devicePixelRatio || 1, 1.5); // coarse while it is dragged
  const columns = Math.max(Math.round(canvas.clientWidth * ratio), 10);
  const rows = Math.max(Math.round(canvas.clientHeight * ratio), 10);
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  const colouring = document.getElementById("colouring").value;
  const kinds = kindsOf(colouring);
  const context = canvas.getContext("2d");
  context.drawImage(imageOf(context, rows, columns, colouring, kinds), 0, 0);
  drawMarks(context, rows, columns);
  const waits = data.blocks.completed.some((end, i) => end > data.blocks.freed[i]);
  const { held, free } = bytesOfKinds(colouring, kinds.length);
  document.getElementById("map-legend").replaceChildren(`After entry ${count(view.entry)}: `, ...legendItems([
    ...kinds.map(([name, paint], i) => [`${name} ${sizeText(held[i])}`, paint]).filter(([name]) => waits || !name.startsWith("freed")),
    [`reserved, free ${sizeText(free)}`, colour("free")], ["not reserved", colour("page")],
  ]));
  const each = (view.x1 - view.x0) / columns;
  const wide = view.timed ? durationText(each) : plural(Math.max(1, each), "entry", "entries");
  const high = ((view.y1 - view.y0) / rows) * data.unit;
  document.getElementById("map-note").textContent =
    `Addresses ${sizeText(Math.round(view.y0) * data.unit)} to ${sizeText(Math.round(view.y1) * data.unit)} of ` +
    `${sizeText(data.axis * data.unit)}, gaps between segments removed. Decimated by density: a pixel is ` +
    `${wide} wide and ${sizeText(Math.max(1, Math.round(high)))} high and shows the share of ` +
    "everything in it; nothing is skipped, and what is smaller than a quarter of its pixel is drawn as a quarter. " +
    "Drag to move, Ctrl and wheel to zoom into time and addresses, click a block to choose it.";
}

function drawMarks(context, rows, columns) {
  const x = (entry) => ((xAt(entry) - view.x0) / (view.x1 - view.x0)) * columns;
  const y = (place) => rows - ((place - view.y0) / (view.y1 - view.y0)) * rows;
  context.lineWidth = 1.5;
  const { shown, crowd } = errorsInView();
  const lines = [[shown, colour("alarm"), crowd ? [] : [6, 4], crowd ? 8 : rows], [[view.entry], colour("ink"), [2, 3], rows]];
  for (const [entries, paint, dash, height] of lines) {
    context.strokeStyle = paint;
    context.setLineDash(dash);
    for (const entry of entries) {
      context.beginPath();
      context.moveTo(x(entry), 0);
      context.lineTo(x(entry), height);
      context.stroke();
    }
  }
  context.setLineDash([]);
  if (view.block >= 0) {
    const { place, size, born, completed } = data.blocks;
    const i = view.block;
    const left = Math.max(x(born[i]), -4), right = Math.min(x(completed[i]), columns + 4);
    const top = Math.max(y(place[i] + size[i]), -4), bottom = Math.min(y(place[i]), rows + 4);
    const grow = (low, high) => (high - low < 6 ? [(low + high) / 2 - 3, 6] : [low, high - low]);
    const [bx, bw] = grow(left, right), [by, bh] = grow(top, bottom);
    context.lineWidth = 4;
    context.strokeStyle = colour("page");
    context.strokeRect(bx, by, bw, bh);
    context.lineWidth = 2;
    context.strokeStyle = colour("alarm");
    context.strokeRect(bx, by, bw, bh);
  }
  if (crosshair) {
    context.strokeStyle = colour("ink");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(crosshair.x * columns - 8, (1 - crosshair.y) * rows);
    context.lineTo(crosshair.x * columns + 8, (1 - crosshair.y) * rows);
    context.moveTo(crosshair.x * columns, (1 - crosshair.y) * rows - 8);
    context.lineTo(crosshair.x * columns, (1 - crosshair.y) * rows + 8);
    context.stroke();
  }
}

// The block at a position (shares of the canvas, y upwards), or else the block that covers most of the
// pixel.
function blockAt(spot) {
  const { place, size, count: n } = data.blocks;
  const born = across(data.blocks, "born"), completed = across(data.blocks, "completed");
  const x = view.x0 + spot.x * (view.x1 - view.x0);
  const at = view.y0 + spot.y * (view.y1 - view.y0);
  const halfX = Math.max((view.x1 - view.x0) / canvas.clientWidth, view.timed ? 0 : 1);
  const halfY = (view.y1 - view.y0) / canvas.clientHeight;
  let best = -1, most = 0;
  for (let i = 0; i < n; i++) {
    if (born[i] > x + halfX || completed[i] <= x - halfX) continue;
    if (place[i] > at + halfY || place[i] + size[i] <= at - halfY) continue;
    const isHere = born[i] <= x && x < completed[i] && place[i] <= at && at < place[i] + size[i];
    if (isHere) return i;
    const wide = Math.min(completed[i], x + halfX) - Math.max(born[i], x - halfX);
    const high = Math.min(place[i] + size[i], at + halfY) - Math.max(place[i], at - halfY);
    if (wide * high > most) [best, most] = [i, wide * high];
  }
  return best;
}

function blockLines(i) {
  const { place, size, slack, born, freed, completed, stream, owner } = data.blocks;
  const bytes = size[i] * data.unit;
  const lines = [
    ["Size", `${sizeText(bytes)} (${bytes.toLocaleString("en-US")} bytes), ${(bytes - slack[i]).toLocaleString("en-US")} requested`],
    ["Address", hex(addressOf(place[i]))],
    ["Made", born[i] < 0 ? "before the recording" : `at entry ${count(born[i])}`],
    ["Freed", freed[i] >= data.n ? "not within the recording" : `at entry ${count(freed[i])}, after ${plural(freed[i] - Math.max(born[i], 0), "entry", "entries")}`],
  ];
  if (completed[i] > freed[i]) lines.push(["Waited", `${plural(completed[i] - freed[i], "entry", "entries")} for another stream`]);
  lines.push(["Stream", data.streams[stream[i]]], ["Line", short(data.owners[owner[i]])]);
  return lines;
}

function showBlock() {
  const panel = document.getElementById("block");
  if (view.block < 0) return panel.replaceChildren(element("p", { textContent: "No block chosen: click one, or choose one from the table of the state." }));
  const list = element("dl");
  for (const [name, what] of blockLines(view.block)) {
    list.append(element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: what })));
  }
  const stack = data.stacks[data.blocks.stack[view.block]];
  return panel.replaceChildren(list, element("pre", { textContent: stack || "no stack recorded" }));
}

function spotOf(event) {
  const box = canvas.getBoundingClientRect();
  return { x: (event.clientX - box.left) / box.width, y: 1 - (event.clientY - box.top) / box.height };
}

function hover(event) {
  const tip = document.getElementById("tip");
  const spot = spotOf(event);
  const found = blockAt(spot);
  readOut(entryAt(view.x0 + spot.x * (view.x1 - view.x0)));
  tip.hidden = found < 0;
  if (found < 0) return;
  tip.textContent = blockLines(found).map(([name, what]) => `${name}: ${what}`).join("\n");
  // On the side with more room, and not below the window.
  const wide = canvas.parentElement.clientWidth;
  const at = canvas.offsetLeft + spot.x * canvas.clientWidth;
  tip.style.left = at > wide / 2 ? "" : `${at + 14}px`;
  tip.style.right = at > wide / 2 ? `${wide - at + 14}px` : "";
  const top = canvas.getBoundingClientRect().top;
  const lowest = Math.max(innerHeight - 8 - tip.offsetHeight - top, -top);
  tip.style.top = `${Math.min((1 - spot.y) * canvas.clientHeight, lowest)}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

function choose(spot) {
  setBlock(blockAt(spot));
  setEntry(entryAt(view.x0 + spot.x * (view.x1 - view.x0)), false);
}

function listenToMap() {
  let drag = null;
  const drop = () => {
    drag = null;
    if (!moving) return;
    moving = false;
    changed("view");
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.clientX, y: event.clientY, x0: view.x0, x1: view.x1, y0: view.y0, y1: view.y1, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return undefined;
    drag.moved = moving = true;
    hideTip();
    const bx = (-dx / canvas.clientWidth) * (drag.x1 - drag.x0);
    const by = (dy / canvas.clientHeight) * (drag.y1 - drag.y0);
    setX(drag.x0 + bx, drag.x1 + bx);
    return setY(drag.y0 + by, drag.y1 + by);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) choose(spotOf(event));
    drop();
  });
  canvas.addEventListener("pointercancel", drop); // a finger that scrolls the page
  canvas.addEventListener("pointerleave", hideTip);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  canvas.addEventListener("dblclick", () => { setX(0, xEnd()); setY(0, data.axis); });
  canvas.addEventListener("wheel", (event) => {
    const spot = spotOf(event);
    wheel(event, view.x0 + spot.x * (view.x1 - view.x0), (factor, at) => {
      zoomX(factor, at);
      zoomY(factor, view.y0 + spot.y * (view.y1 - view.y0));
    });
  }, { passive: false });
  canvas.addEventListener("keydown", mapKey);
  canvas.addEventListener("blur", () => { crosshair = null; changed("block"); });
}

function mapKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return; // shortcuts of the browser
  const step = event.shiftKey ? 0.1 : 0.01;
  const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
  const spot = crosshair ?? { x: 0.5, y: 0.5 };
  if (moves[event.key]) {
    const [dx, dy] = moves[event.key];
    crosshair = { x: Math.min(Math.max(spot.x + dx, 0), 0.999), y: Math.min(Math.max(spot.y + dy, 0), 0.999) };
    changed("block");
  } else if (event.key === "Enter" || event.key === " ") choose(crosshair = spot);
  else if ("+=-".includes(event.key)) {
    const factor = event.key === "-" ? 2 : 0.5;
    zoomX(factor, view.x0 + spot.x * (view.x1 - view.x0));
    zoomY(factor, view.y0 + spot.y * (view.y1 - view.y0));
  } else if (event.key === "0") {
    setX(0, xEnd());
    setY(0, data.axis);
  } else if (event.key === "Escape") {
    crosshair = null;
    setBlock(-1);
  } else return;
  event.preventDefault();
}
