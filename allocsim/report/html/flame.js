// Flame graphs: the page has drawn them; this script moves their boxes and finds boxes by name.

const LETTER = 7; // CSS pixels of a wide letter of a label
const LEAST_LABEL_LETTERS = 4;

const flameEnd = (box) => box.start + box.bytes;
const holds = (outer, box) => outer.depth < box.depth && outer.start <= box.start && flameEnd(box) <= flameEnd(outer);

function startFlames() {
  for (const graph of document.querySelectorAll("svg.flame")) {
    const part = (name) => document.getElementById(graph.id.replace(/graph$/, name));
    const boxes = [...graph.children].map((element) => ({
      element, title: element.firstElementChild.textContent, label: element.lastElementChild, words: element.lastElementChild.textContent, name: element.dataset.name.toLowerCase(),
      depth: Number(element.dataset.depth), start: Number(element.dataset.start), bytes: Number(element.dataset.bytes),
    }));
    const flame = { graph, boxes, bytes: Number(graph.dataset.bytes), text: part("text"), here: null };
    for (const box of boxes) box.element.addEventListener("click", () => zoomFlame(flame, box));
    part("whole").addEventListener("click", () => zoomFlame(flame, null));
    part("find").addEventListener("input", (event) => findFrames(flame, event.target.value));
    graph.addEventListener("keydown", (event) => flameKey(flame, event));
    new ResizeObserver(() => labelFrames(flame)).observe(graph);
  }
}

// Show the chosen frame as wide as the graph, with its callers and callees; null shows everything.
function zoomFlame(flame, zoomed) {
  const { start, bytes } = zoomed || { start: 0, bytes: flame.bytes };
  for (const box of flame.boxes) {
    const left = Math.max(box.start, start), right = Math.min(flameEnd(box), start + bytes);
    const shown = right > left && (!zoomed || box === zoomed || holds(box, zoomed) || holds(zoomed, box));
    box.element.style.display = shown ? "" : "none";
    if (!shown) continue;
    box.element.setAttribute("x", `${(left - start) / bytes * 100}%`);
    box.element.setAttribute("width", `${(right - left) / bytes * 100}%`);
  }
  labelFrames(flame);
  goToFrame(flame, zoomed);
}

// Name and bytes if they fit, else as much of the name as fits; nothing in a box of a few letters.
function labelFrames({ graph, boxes }) {
  for (const { element, label, words } of boxes) {
    const room = Math.floor((parseFloat(element.getAttribute("width")) / 100 * graph.clientWidth - 8) / LETTER);
    const name = words.slice(0, words.search(/ \S+ \S+$/));
    const cut = room >= LEAST_LABEL_LETTERS ? `${name.slice(0, room - 1)}…` : "";
    label.textContent = [words, name].find((each) => each.length <= room) ?? cut;
  }
}

function goToFrame(flame, box) {
  flame.here?.element.classList.remove("here");
  flame.here = box;
  box?.element.classList.add("here");
  flame.text.textContent = box ? box.title : "";
}

// Bytes are counted once, however often a name occurs in one stack.
function findFrames(flame, words) {
  const wanted = words.trim().toLowerCase();
  const found = flame.boxes.filter((box) => wanted && box.name.includes(wanted));
  const outermost = found.filter((box) => !found.some((other) => holds(other, box)));
  flame.graph.classList.toggle("finding", Boolean(wanted));
  for (const box of flame.boxes) box.element.classList.toggle("found", found.includes(box));
  const bytes = outermost.reduce((sum, box) => sum + box.bytes, 0);
  const share = bytes / flame.bytes * 100;
  flame.text.textContent = wanted ? `${plural(found.length, "frame")}, ${sizeText(bytes)}, ${share.toFixed(1)}%` : "";
}

function flameKey(flame, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return; // shortcuts of the browser
  const { here } = flame;
  const shown = flame.boxes.filter((box) => box.element.style.display !== "none");
  const row = here ? shown.filter((box) => box.depth === here.depth) : [];
  const go = (box) => goToFrame(flame, box);
  const actions = {
    ArrowDown: () => go((here ? shown.find((box) => box.depth === here.depth + 1 && holds(here, box)) : shown[0]) || here),
    ArrowUp: () => go(shown.find((box) => here && box.depth === here.depth - 1 && holds(box, here)) || here),
    ArrowRight: () => go(row[row.indexOf(here) + 1] || here || shown[0]),
    ArrowLeft: () => go(row[row.indexOf(here) - 1] || here || shown[0]),
    Enter: () => here && zoomFlame(flame, here),
    Escape: () => zoomFlame(flame, null),
  };
  if (!actions[event.key]) return;
  actions[event.key]();
  event.preventDefault();
}
