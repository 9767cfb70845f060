// State of the device after one entry, as tables of segments and of the largest blocks.

const SHOWN_SEGMENTS = 40;
const SHOWN_BLOCKS = 20;

function liveAt(lives, from, to, entry) {
  const rows = [];
  for (let i = 0; i < lives.count; i++) if (from[i] <= entry && entry < to[i]) rows.push(i);
  return rows.sort((a, b) => lives.place[a] - lives.place[b]);
}

function rangesAt(entry) {
  const { segments } = data;
  const ranges = [];
  for (const i of liveAt(segments, segments.born, segments.died, entry)) {
    const last = ranges.at(-1);
    const joins = last && data.expandable && last.group === segments.group[i];
    if (joins && addressOf(last.place) + BigInt(last.size * data.unit) === addressOf(segments.place[i])) last.size += segments.size[i];
    else ranges.push({ place: segments.place[i], size: segments.size[i], group: segments.group[i], blocks: [] });
  }
  return ranges;
}

function stateAt(entry) {
  const { blocks } = data;
  const ranges = rangesAt(entry);
  const rows = liveAt(blocks, blocks.born, blocks.completed, entry);
  let at = 0;
  for (const i of rows) {
    while (at < ranges.length - 1 && blocks.place[i] >= ranges[at].place + ranges[at].size) at++;
    if (ranges[at]) ranges[at].blocks.push(i);
  }
  for (const range of ranges) Object.assign(range, sumsOf(range, entry));
  return { ranges, rows };
}

function sumsOf(range, entry) {
  const { place, size, freed } = data.blocks;
  let allocated = 0, waiting = 0, largest = 0, end = range.place;
  for (const i of range.blocks) {
    largest = Math.max(largest, place[i] - end);
    end = place[i] + size[i];
    if (entry < freed[i]) allocated += size[i];
    else waiting += size[i];
  }
  largest = Math.max(largest, range.place + range.size - end);
  return { allocated, waiting, largest, free: range.size - allocated - waiting };
}

function barOf(range, longest, entry) {
  const bar = element("canvas", { className: "bar", width: 420, height: 14 });
  bar.setAttribute("aria-hidden", "true");
  const context = bar.getContext("2d");
  const scale = 420 / longest;
  const { place, size, freed } = data.blocks;
  context.fillStyle = colour("free");
  context.fillRect(0, 0, Math.max(range.size * scale, 1), 14);
  for (const i of range.blocks) {
    context.fillStyle = entry < freed[i] ? colour("kind-0") : colour("kind-1");
    const left = (place[i] - range.place) * scale, wide = size[i] * scale;
    context.fillRect(left, 0, Math.max(wide > 3 ? wide - 0.5 : wide, 0.5), 14);
  }
  return bar;
}

function tableOf(caption, heads, rows) {
  const table = element("table", { className: "words" }, element("caption", { textContent: caption }));
  const head = element("tr");
  for (const name of heads) head.append(element("th", { scope: "col", textContent: name }));
  table.append(element("thead", {}, head));
  const body = element("tbody");
  for (const [first, ...rest] of rows) {
    const row = element("tr", {}, element("th", { scope: "row" }, first));
    for (const cell of rest) row.append(element("td", {}, cell));
    body.append(row);
  }
  table.append(body);
  return element("div", { className: "scroll" }, table);
}

// Groups of segments that have one pool and the same sizes, in the order of their first ones.
function alike(ranges) {
  const groups = new Map();
  for (const range of ranges) {
    const key = ["size", "allocated", "waiting", "largest", "group"].map((name) => range[name]).join();
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(range);
  }
  return [...groups.values()];
}

function drawState() {
  const entry = view.entry;
  document.getElementById("entry").value = entry;
  document.getElementById("entry-slider").value = entry;
  const { ranges, rows } = stateAt(entry);
  const bytes = (name) => sizeText(ranges.reduce((sum, range) => sum + range[name], 0) * data.unit);
  const largest = ranges.reduce((most, range) => Math.max(most, range.largest), 0);
  const what = data.actions[data.columns.action[entry]];
  const live = rows.filter((i) => entry < data.blocks.freed[i]).length;
  document.getElementById("state-text").textContent =
    `After entry ${count(entry)} (${what}): ${bytes("size")} reserved in ${plural(ranges.length, "segment")}, ` +
    `${bytes("allocated")} allocated in ${plural(live, "block")}, ${bytes("waiting")} waiting for a stream, ` +
    `${bytes("free")} free; largest free block ${sizeText(largest * data.unit)}.`;
  const groups = alike([...ranges].sort((a, b) => b.size - a.size));
  const shown = groups.slice(0, SHOWN_SEGMENTS);
  const longest = shown.length ? shown[0][0].size : 1;
  const hidden = groups.slice(SHOWN_SEGMENTS).flat().length;
  document.getElementById("state-segments").replaceChildren(tableOf(
    `Segments, the largest first; those of equal sizes share a row${hidden ? `; ${plural(hidden, "smaller one")} not shown` : ""}. Bars are to one scale`,
    ["segment", "size", "allocated", "waiting", "free", "largest free block", "pool", "blocks"],
    shown.map(([range, ...others]) => [
      `${hex(addressOf(range.place))}${others.length ? ` and ${count(others.length)} more` : ""}`,
      ...["size", "allocated", "waiting", "free", "largest"].map((name) => sizeText(range[name] * data.unit)),
      data.groups[range.group], barOf(range, longest, entry),
    ]),
  ));
  document.getElementById("state-legend").replaceChildren(...legendItems([
    [`allocated ${bytes("allocated")}`, colour("kind-0")], [`waiting ${bytes("waiting")}`, colour("kind-1")],
    [`free ${bytes("free")}`, colour("free")],
  ]));
  drawStrip(ranges, entry);
  drawBlocks(rows, entry);
}

function drawBlocks(rows, entry) {
  const { size, born, owner } = data.blocks;
  const largest = [...rows].sort((a, b) => size[b] - size[a]).slice(0, SHOWN_BLOCKS);
  document.getElementById("state-blocks").replaceChildren(tableOf(
    largest.length < rows.length ? `The ${largest.length} largest blocks of ${count(rows.length)}` : "The blocks, the largest first",
    ["block", "size", "age (entries)", "made at entry", "by"],
    largest.map((i) => {
      const address = hex(addressOf(data.blocks.place[i]));
      const button = element("button", { type: "button", textContent: address });
      button.setAttribute("aria-label", `Show the block at ${address} on the map`);
      button.addEventListener("click", () => goTo("map", canvas, () => showLife(i)));
      const before = born[i] < 0;
      return [button, sizeText(size[i] * data.unit), before ? "older" : count(entry - born[i]),
        before ? "before the recording" : count(born[i]), short(data.owners[owner[i]])];
    }),
  ));
}
