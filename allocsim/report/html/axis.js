// Horizontal axis: entries, or their wall time if it is recorded (microseconds since the first entry).
// `view.x0` and `view.x1` are in these units; an entry lasts until the next one begins.

const hasTime = () => data.columns.time !== undefined;

function xEnd() {
  if (!view.timed) return data.n;
  const { time } = data.columns;
  return time[data.n - 1] + Math.max(time[data.n - 1] / data.n, 1);
}

function xAt(entry) {
  if (!view.timed || entry < 0) return entry;
  return entry >= data.n ? xEnd() : data.columns.time[Math.floor(entry)];
}

function entryAt(x) {
  if (!view.timed) return x;
  return Math.max(stretchAt(data.columns.time, x), 0);
}

// Positions of a column of entries; cached, since a million are looked up for every picture.
function across(lives, name) {
  if (!view.timed) return lives[name];
  lives.timed ??= {};
  return lives.timed[name] ??= lives[name].map(xAt);
}

function durationText(time) {
  if (time < 1e3) return `${Math.round(time)} µs`;
  if (time < 1e6) return `${(time / 1e3).toFixed(2)} ms`;
  return time < 6e8 ? `${(time / 1e6).toFixed(2)} s` : `${(time / 6e7).toFixed(1)} min`;
}

function timeUnitOf(span) {
  if (span < 4e3) return ["µs", 1];
  return span < 4e6 ? ["ms", 1e3] : ["s", 1e6];
}

function spanText() {
  if (!view.timed) return `Entries ${count(view.x0)} to ${count(view.x1)} of ${count(data.n)}`;
  const entries = `entries ${count(entryAt(view.x0))} to ${count(entryAt(view.x1) + 1)} of ${count(data.n)}`;
  return `${durationText(view.x0)} to ${durationText(view.x1)}, ${entries}`;
}

function axisOptions() {
  if (!view.timed) return { label: "time (entry of the recording)", values: (_, ticks) => ticks.map(count), incrs: WHOLE, space: 75 };
  const [name, unit] = timeUnitOf(view.x1 - view.x0);
  return {
    label: `wall time since the first entry (${name})`, incrs: WHOLE, space: 75,
    values: (_, ticks) => ticks.map((tick) => (tick / unit).toLocaleString("en-US")),
  };
}

// The same entries stay in view.
function setAxis(timed) {
  const isWhole = view.x0 === 0 && view.x1 === xEnd();
  const first = entryAt(view.x0), last = entryAt(view.x1);
  view.timed = timed && hasTime();
  if (isWhole) setX(0, xEnd());
  else setX(xAt(first), xAt(last));
  makeTimeline();
}

function showAxis() {
  const choice = document.getElementById("axis");
  choice.value = view.timed ? "time" : "entries";
  choice.closest("label").hidden = !hasTime();
  document.querySelector('#colouring [value="category"]').hidden = !tellsCategories();
}
