// The flame graph: the page has drawn it; this moves its boxes, and finds some by name.

const flame = { graph: null, boxes: [], zoomed: null, here: null };

const flameEnd = (box) => box.start + box.bytes;
const holds = (outer, box) => outer.depth < box.depth && outer.start <= box.start && flameEnd(box) <= flameEnd(outer);

function startFlame() {
  flame.graph = document.getElementById("flame-graph");
  if (!flame.graph) return;
  flame.boxes = [...flame.graph.children].map((element) => ({
    element, title: element.firstElementChild.textContent, name: element.dataset.name.toLowerCase(),
    depth: Number(element.dataset.depth), start: Number(element.dataset.start), bytes: Number(element.dataset.bytes),
  }));
  for (const box of flame.boxes) box.element.addEventListener("click", () => zoomFlame(box));
  document.getElementById("flame-whole").addEventListener("click", () => zoomFlame(null));
  document.getElementById("flame-find").addEventListener("input", (event) => findFrames(event.target.value));
  flame.graph.addEventListener("keydown", flameKey);
}

// The chosen frame as wide as the graph, its callers above it, its callees below; null: everything.
function zoomFlame(zoomed) {
  const all = { start: 0, bytes: Number(flame.graph.dataset.bytes) };
  const { start, bytes } = zoomed || all;
  flame.zoomed = zoomed;
  for (const box of flame.boxes) {
    const left = Math.max(box.start, start), right = Math.min(flameEnd(box), start + bytes);
    const shown = right > left && (!zoomed || box === zoomed || holds(box, zoomed) || holds(zoomed, box));
    box.element.style.display = shown ? "" : "none";
    if (!shown) continue;
    box.element.setAttribute("x", `${(left - start) / bytes * 100}%`);
    box.element.setAttribute("width", `${(right - left) / bytes * 100}%`);
  }
  goToFrame(zoomed);
}

function sayFlame(words) {
  document.getElementById("flame-text").textContent = words;
}

function goToFrame(box) {
  flame.here?.element.classList.remove("here");
  flame.here = box;
  box?.element.classList.add("here");
  sayFlame(box ? box.title : "");
}

// Bytes are counted once, however often a name stands in one stack.
function findFrames(words) {
  const wanted = words.trim().toLowerCase();
  const found = flame.boxes.filter((box) => wanted && box.name.includes(wanted));
  const outermost = found.filter((box) => !found.some((other) => holds(other, box)));
  flame.graph.classList.toggle("finding", Boolean(wanted));
  for (const box of flame.boxes) box.element.classList.toggle("found", found.includes(box));
  const bytes = outermost.reduce((sum, box) => sum + box.bytes, 0);
  const share = bytes / Number(flame.graph.dataset.bytes) * 100;
  sayFlame(wanted ? `${plural(found.length, "frame")}, ${sizeText(bytes)}, ${share.toFixed(1)}%` : "");
}

function flameKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return; // the browser's own
  const { here } = flame;
  const shown = flame.boxes.filter((box) => box.element.style.display !== "none");
  const row = here ? shown.filter((box) => box.depth === here.depth) : [];
  const actions = {
    ArrowDown: () => goToFrame((here ? shown.find((box) => box.depth === here.depth + 1 && holds(here, box)) : shown[0]) || here),
    ArrowUp: () => goToFrame(shown.find((box) => here && box.depth === here.depth - 1 && holds(box, here)) || here),
    ArrowRight: () => goToFrame(row[row.indexOf(here) + 1] || here || shown[0]),
    ArrowLeft: () => goToFrame(row[row.indexOf(here) - 1] || here || shown[0]),
    Enter: () => here && zoomFlame(here),
    Escape: () => zoomFlame(null),
  };
  if (!actions[event.key]) return;
  actions[event.key]();
  event.preventDefault();
}
