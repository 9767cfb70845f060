// From columns to a page that answers.

function listen() {
  const actions = {
    in: () => zoomX(0.5), out: () => zoomX(2), left: () => moveX(-0.5), right: () => moveX(0.5),
    all: () => setX(0, data.n),
  };
  for (const button of document.querySelectorAll("[data-view]")) {
    button.addEventListener("click", actions[button.dataset.view]);
  }
  document.getElementById("timeline").addEventListener("keydown", timeKey);
  document.getElementById("colouring").addEventListener("change", () => changed("view"));
  document.getElementById("rows-all").addEventListener("click", () => setY(0, data.axis));
  document.getElementById("entry").addEventListener("change", (event) => setEntry(Number(event.target.value)));
  document.getElementById("entry-slider").addEventListener("input", (event) => setEntry(Number(event.target.value)));
  for (const button of document.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => setEntry(view.entry + Number(button.dataset.step)));
  }
  document.getElementById("to-peak").addEventListener("click", () => setEntry(data.peak));
  for (const button of document.querySelectorAll("[data-entry]")) {
    button.addEventListener("click", () => goTo("state", () => setEntry(Number(button.dataset.entry))));
  }
  for (const button of document.querySelectorAll("[data-block]")) {
    button.addEventListener("click", () => goTo("map", () => showMaker(Number(button.dataset.block))));
  }
  document.getElementById("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  new ResizeObserver(() => {
    plot.setSize({ width: document.getElementById("timeline").clientWidth, height: 320 });
    changed("view");
  }).observe(document.getElementById("timeline"));
  listenToMap();
}

function goTo(section, then) {
  then();
  document.getElementById(section).scrollIntoView();
}

// The block that an entry made, in the middle of the map.
function showMaker(entry) {
  const { blocks } = data;
  const row = blocks.born.indexOf(entry);
  if (row < 0) return;
  setBlock(row);
  setY(0, data.axis);
  const end = Math.min(blocks.completed[row], data.n);
  const margin = Math.max((end - entry) * 0.5, 20);
  setX(entry - margin, end + margin);
}

function timeKey(event) {
  const step = Math.max((view.x1 - view.x0) / 200, 1);
  const actions = {
    ArrowLeft: () => (event.shiftKey ? moveX(-0.1) : setEntry(view.entry - step)),
    ArrowRight: () => (event.shiftKey ? moveX(0.1) : setEntry(view.entry + step)),
    Home: () => setEntry(0), End: () => setEntry(data.n - 1),
    "+": () => zoomX(0.5, view.entry), "=": () => zoomX(0.5, view.entry), "-": () => zoomX(2, view.entry),
    0: () => setX(0, data.n),
  };
  if (!actions[event.key]) return;
  actions[event.key]();
  event.preventDefault();
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", String(dark));
  if (plot) {
    makeTimeline();
    changed("view");
    changed("entry");
  }
}

async function start() {
  const status = document.getElementById("loading");
  document.body.classList.remove("no-js");
  if (typeof DecompressionStream === "undefined") {
    document.body.classList.add("no-js");
    document.getElementById("main").prepend(element("p", { textContent: "This browser cannot unpack the pictures' data; the tables below hold the numbers." }));
    return;
  }
  for (const details of document.querySelectorAll("#tables details")) details.open = false;
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  data = await readData();
  Object.assign(view, { x1: data.n, y1: data.axis, entry: data.ooms.at(-1) ?? data.peak });
  watchers.view.push(drawTimeline, drawMap);
  watchers.entry.push(drawTimeline, drawMap, drawState, () => readOut(view.entry));
  watchers.block.push(drawMap, showBlock);
  makeTimeline();
  listen();
  drawTimeline();
  drawMap();
  drawState();
  readOut(view.entry);
  status.textContent = "";
  document.body.dataset.ready = "true";
}

start();
