// Start the page: unpack the columns and connect the panels.

const PAPER = 700; // CSS pixels between the margins of A4 and Letter

function listen() {
  const actions = {
    in: () => zoomX(0.5), out: () => zoomX(2), left: () => moveX(-0.5), right: () => moveX(0.5),
    all: () => setX(0, xEnd()),
    "rows-in": () => zoomY(0.5), "rows-out": () => zoomY(2), lower: () => moveY(-0.5), higher: () => moveY(0.5),
    "rows-all": () => setY(0, data.axis),
  };
  for (const button of document.querySelectorAll("[data-view]")) {
    button.addEventListener("click", actions[button.dataset.view]);
  }
  document.getElementById("timeline").addEventListener("keydown", timeKey);
  document.getElementById("axis").addEventListener("change", (event) => setAxis(event.target.value === "time"));
  document.getElementById("colouring").addEventListener("change", () => changed("view"));
  document.getElementById("entry").addEventListener("change", (event) => setEntry(Number(event.target.value)));
  document.getElementById("entry-slider").addEventListener("input", (event) => setEntry(Number(event.target.value)));
  for (const button of document.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => setEntry(view.entry + Number(button.dataset.step)));
  }
  document.getElementById("to-peak").addEventListener("click", () => setEntry(data.peak));
  for (const button of document.querySelectorAll("[data-block]")) {
    button.addEventListener("click", () => goTo("map", canvas, () => showMaker(Number(button.dataset.block))));
  }
  document.getElementById("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  new ResizeObserver(() => {
    plot.setSize({ width: document.getElementById("timeline").clientWidth, height: 320 });
    redrawStrip();
    changed("view");
  }).observe(document.getElementById("timeline"));
  listenToMap();
  startFlames();
  startOwners();
  listenToCopies();
  listenToTabs();
  listenToStrip();
  listenToPrinter();
}

// Scroll to a section and move the keyboard focus there.
function goTo(section, focus, then) {
  then();
  document.getElementById(section).scrollIntoView();
  focus.focus({ preventScroll: true });
}

// Return the block that an entry allocated.
function showMaker(entry) {
  const row = data.blocks.born.indexOf(entry);
  if (row >= 0) showLife(row);
}

// Show a block from its first entry to its last, in the middle of the map.
function showLife(row) {
  const { blocks } = data;
  setBlock(row);
  setY(0, data.axis);
  const start = Math.max(blocks.born[row], 0), end = Math.min(blocks.completed[row], data.n);
  const margin = Math.max((end - start) * 0.5, 20);
  setX(xAt(start - margin), xAt(end + margin));
}

function timeKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return; // shortcuts of the browser
  const step = Math.max(Math.round((entryAt(view.x1) - entryAt(view.x0)) / 200), 1);
  const actions = {
    ArrowLeft: () => (event.shiftKey ? moveX(-0.1) : setEntry(view.entry - step)),
    ArrowRight: () => (event.shiftKey ? moveX(0.1) : setEntry(view.entry + step)),
    Home: () => setEntry(0), End: () => setEntry(data.n - 1),
    "+": () => zoomX(0.5, xAt(view.entry)), "=": () => zoomX(0.5, xAt(view.entry)), "-": () => zoomX(2, xAt(view.entry)),
    0: () => setX(0, xEnd()),
  };
  if (!actions[event.key]) return;
  actions[event.key]();
  event.preventDefault();
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = dark ? "Light colours" : "Dark colours";
  if (plot) {
    makeTimeline();
    changed("view");
    changed("entry");
  }
}

// For printing: light colours, the width of paper, with the tables; restored afterwards.
function listenToPrinter() {
  const tables = [...document.querySelectorAll("#tables details")];
  let before = null;
  addEventListener("beforeprint", () => {
    before = { dark: document.documentElement.dataset.theme === "dark", open: tables.map((details) => details.open) };
    for (const details of tables) details.open = true;
    setTheme(false);
    plot.setSize({ width: PAPER, height: 320 });
    drawState();
    queueMicrotask(() => { // after uPlot has set its area
      drawAreas();
      drawMap();
    });
  });
  addEventListener("afterprint", () => {
    tables.forEach((details, i) => { details.open = before.open[i]; });
    setTheme(before.dark);
  });
}

async function start() {
  document.body.classList.remove("no-js");
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  const { device, entry } = momentOf(location.hash);
  await takeDevice(device ?? firstDevice());
  if (entry !== null) setEntry(entry);
  watchers.view.push(drawTimeline, drawAreas, drawMap);
  watchers.entry.push(drawTimeline, drawTimeLegend, drawAreas, drawMap, drawState, () => readOut(view.entry), writeMoment);
  watchers.block.push(drawMap, showBlock);
  makeTimeline();
  listen();
  listenToMoments();
  listenToAreas();
  drawTimeline();
  drawAreas();
  drawMap();
  drawState();
  readOut(view.entry);
  for (const details of document.querySelectorAll("#tables details")) details.open = false;
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  document.body.classList.add("no-js");
  document.getElementById("main").prepend(element("p", { textContent: `The pictures cannot be drawn in this browser (${error.message}); the tables below hold the numbers.` }));
});
