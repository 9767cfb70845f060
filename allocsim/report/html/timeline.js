// The timeline: uPlot with the minimum and maximum of each stretch, at the finest level that fits.

const MOST_POINTS = 4000;
const SHADES = { reserved: 1.6, allocated: 1.2, requested: 0.9, ideal: 1.4 };
// Steps of the time axis; there are no half entries.
const WHOLE = Array.from({ length: 10 }, (_, i) => [1, 2, 5].map((factor) => factor * 10 ** i)).flat();
let plot = null;

function levelFor(span) {
  return [1, ...data.levels].find((step) => span / step <= MOST_POINTS) ?? data.levels.at(-1) ?? 1;
}

function windowOf() {
  const from = entryAt(view.x0), to = view.timed ? entryAt(view.x1) + 1 : view.x1;
  const step = levelFor(to - from);
  const first = Math.max(Math.floor(from / step) - 1, 0);
  const last = Math.min(Math.ceil(to / step) + 1, Math.ceil(data.n / step));
  const x = new Float64Array(last - first + 1);
  for (let i = 0; i < x.length; i++) x[i] = xAt(Math.min((first + i) * step, data.n));
  const rows = [x];
  for (const name of data.series) {
    for (const side of ["high", "low"]) {
      const values = data.columns[step === 1 ? name : `${name}.${side}.${step}`];
      const part = new Float64Array(x.length);
      for (let i = 0; i < x.length; i++) part[i] = values[Math.min(first + i, values.length - 1)];
      rows.push(part);
    }
  }
  return { step, rows };
}

function stroke(u, from, to, paint, dash, width = 1.5) {
  u.ctx.save();
  u.ctx.strokeStyle = paint;
  u.ctx.lineWidth = width * devicePixelRatio;
  u.ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  u.ctx.beginPath();
  u.ctx.moveTo(...from);
  u.ctx.lineTo(...to);
  u.ctx.stroke();
  u.ctx.restore();
}

function lineAt(u, entry, paint, dash, height = u.bbox.height) {
  const at = u.valToPos(xAt(entry), "x", true);
  if (at < u.bbox.left || at > u.bbox.left + u.bbox.width) return;
  stroke(u, [at, u.bbox.top], [at, u.bbox.top + height], paint, dash);
}

function drawLines(u) {
  const { left, top, width, height } = u.bbox;
  if (isLimitNear()) {
    const at = u.valToPos(data.memory, "y", true);
    stroke(u, [left, at], [left + width, at], colour("soft"), [1, 4]);
  }
  const { shown, crowd } = errorsInView();
  for (const entry of shown) lineAt(u, entry, colour("alarm"), crowd ? [] : [6, 4], crowd ? 8 * devicePixelRatio : height);
  lineAt(u, view.entry, colour("ink"), [2, 3]);
}

const peakReserved = () => Math.max(...data.columns[data.levels.length ? `reserved.high.${data.levels.at(-1)}` : "reserved"]);

// The limit of a device far larger than the run is not drawn; it would flatten the curves.
const isLimitNear = () => data.memory !== null && data.memory < 1.5 * peakReserved();

function drawCalls(u) {
  // One tick per pixel, however many calls it contains.
  const { left, top, width, height } = u.bbox;
  for (const [name, paint, row] of [["takes", colour("ideal"), 0], ["gives", colour("alarm"), 1]]) {
    const seen = new Uint8Array(Math.ceil(width) + 2);
    u.ctx.fillStyle = paint;
    for (const entry of data.columns[name]) {
      const at = Math.round(u.valToPos(xAt(entry), "x", true) - left);
      if (at < 0 || at > width || seen[at]) continue;
      seen[at] = 1;
      u.ctx.fillRect(left + at, top + height - (row + 1) * 7 * devicePixelRatio, Math.max(1, devicePixelRatio), 6 * devicePixelRatio);
    }
  }
}

function timelineOptions(box) {
  const stepped = uPlot.paths.stepped({ align: 1 });
  const axis = () => ({ stroke: colour("ink"), grid: { stroke: colour("faint"), width: 1 }, ticks: { stroke: colour("faint") } });
  const series = [{}];
  const bands = [];
  for (const name of data.series) {
    const paint = colour(name);
    bands.push({ series: [series.length, series.length + 1], fill: `${paint}55` });
    series.push({ stroke: paint, width: SHADES[name], paths: stepped, points: { show: false } });
    series.push({ stroke: paint, width: SHADES[name] / 3, paths: stepped, points: { show: false } });
  }
  const top = Math.max(peakReserved(), isLimitNear() ? data.memory : 0, 2 ** 21);
  const unit = unitOf(top);
  return {
    width: box.clientWidth, height: 320, padding: [10 + bandsHeight(), 30, 0, 0], series, bands, legend: { show: false },
    scales: { x: { time: false, range: () => [view.x0, view.x1] }, y: { range: () => [0, top * 1.05] } },
    axes: [
      { ...axis(), ...axisOptions() },
      {
        ...axis(), label: `memory (${unit[0]})`, size: 64,
        splits: () => splitsOf(0, top * 1.05, unit[1], 6),
        values: (_, ticks) => ticks.map((tick) => (tick / unit[1]).toLocaleString("en-US")),
      },
    ],
    cursor: { drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => setX(0, xEnd()) } },
    hooks: {
      setSelect: [(u) => {
        if (u.select.width < 4) return;
        setX(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
      setCursor: [(u) => readOut(u.cursor.left >= 0 ? entryAt(u.posToVal(u.cursor.left, "x")) : view.entry)],
      drawClear: [drawBands],
      draw: [drawCalls, drawLines],
    },
  };
}

function readOut(at) {
  const entry = Math.min(Math.max(Math.floor(at), 0), data.n - 1);
  const parts = data.series.map((name) => `${name} ${sizeText(data.columns[name][entry])}`);
  const what = data.actions[data.columns.action[entry]];
  const part = partText(entry);
  document.getElementById("time-readout").textContent = `Entry ${count(entry)} (${what}): ${parts.join(", ")}${part ? `; ${part}` : ""}${hasTime() ? `; ${durationText(data.columns.time[entry])}` : ""}`;
}

function makeTimeline() {
  const box = document.getElementById("timeline");
  if (plot) plot.destroy();
  plot = new uPlot(timelineOptions(box), windowOf().rows, box);
  plot.over.addEventListener("wheel", (event) => wheel(event, plot.posToVal(plot.cursor.left, "x"), zoomX), { passive: false });
  let from = 0;
  plot.over.addEventListener("mousedown", (event) => { from = event.clientX; });
  plot.over.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - from) < 4) setEntry(entryAt(plot.posToVal(plot.cursor.left, "x")), false);
  });
  drawTimeLegend();
}

// The bytes after the chosen entry.
function drawTimeLegend() {
  document.getElementById("time-legend").replaceChildren(...legendItems([
    ...data.series.map((name) => [`${name} ${sizeText(data.columns[name][view.entry])}`, colour(name), "line"]),
    ...(isLimitNear() ? [[`device memory, ${sizeText(data.memory)}`, colour("soft"), "dotted line"]] : []),
    ["driver gave memory", colour("ideal"), "tick"], ["driver got it back", colour("alarm"), "tick"],
    ...(data.ooms.length ? [["out of memory", colour("alarm"), "dashed"]] : []),
    ["the moment chosen", colour("ink"), "dotted"],
    ...bandLegend(),
  ]));
}

function drawTimeline() {
  const { step, rows } = windowOf();
  plot.setData(rows, false);
  plot.setScale("x", { min: view.x0, max: view.x1 });
  document.getElementById("view-text").textContent = spanText();
  document.getElementById("decimated").textContent = step === 1
    ? "Every entry is drawn."
    : `Decimated: each step of the lines shows the lowest and the highest of ${count(step)} entries; none is skipped, and zooming in shows finer levels down to single entries.`;
}
