// Background of the curves: phases as bands of colour, steps as numbered lines.

const STRIP = 8; // CSS pixels of the strip of full colour above the curves
const LABELS = 14;
const TINT = 0.16;
const LEAST_STEP = 6; // CSS pixels between lines of steps
const LEAST_LABEL = 56;

const phaseColour = (kind) => colour(`phase-${kind}`);
const tellsPhases = () => data.columns["phase.kind"].some((kind) => kind > 0);
const bandsHeight = () => (data.columns["step.start"].length || tellsPhases() ? STRIP + LABELS : 0);

// Index of the stretch that contains an entry; starts: first entries of all stretches, in order.
function stretchAt(starts, entry) {
  let low = 0, high = starts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= entry) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

const firstStretch = (starts) => Math.max(stretchAt(starts, entryAt(view.x0)), 0);

function partText(entry) {
  const at = stretchAt(data.columns["step.start"], entry);
  const phase = data.phases[data.columns["phase.kind"][stretchAt(data.columns["phase.start"], entry)]];
  const step = at < 0 ? "" : `step ${count(data.columns["step.number"][at])}`;
  return [step, phase].filter(Boolean).join(", ");
}

// The phase that covers most of each pixel; -1 where nothing is drawn.
function phasesOf(width) {
  const starts = data.columns["phase.start"], kinds = data.columns["phase.kind"];
  const share = new Float64Array(width * data.phases.length);
  const scale = width / (view.x1 - view.x0);
  for (let i = firstStretch(starts); i < starts.length && xAt(starts[i]) < view.x1; i++) {
    const left = Math.max((xAt(starts[i]) - view.x0) * scale, 0);
    const right = Math.min((xAt(starts[i + 1] ?? data.n) - view.x0) * scale, width);
    for (let x = Math.floor(left); x < right; x++) {
      share[x * data.phases.length + kinds[i]] += Math.min(right, x + 1) - Math.max(left, x);
    }
  }
  return Array.from({ length: width }, (_, x) => {
    const own = share.subarray(x * data.phases.length, (x + 1) * data.phases.length);
    const most = Math.max(...own);
    return most > 0 ? own.indexOf(most) : -1;
  });
}

function drawPhases(u) {
  const { left, top, width, height } = u.bbox;
  const kinds = phasesOf(Math.round(width));
  const strip = STRIP * devicePixelRatio;
  for (let x = 0, end = 0; x < kinds.length; x = end) {
    end = x;
    while (end < kinds.length && kinds[end] === kinds[x]) end++;
    if (kinds[x] < 1) continue;
    u.ctx.fillStyle = phaseColour(kinds[x]);
    u.ctx.fillRect(left + x, top - strip, end - x, strip);
    u.ctx.globalAlpha = TINT;
    u.ctx.fillRect(left + x, top, end - x, height);
    u.ctx.globalAlpha = 1;
  }
}

function drawSteps(u) {
  const { left, top, width, height } = u.bbox;
  const ratio = devicePixelRatio, above = (STRIP + LABELS) * ratio;
  const starts = data.columns["step.start"];
  let line = -Infinity, label = -Infinity;
  u.ctx.fillStyle = colour("ink");
  u.ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  u.ctx.textBaseline = "top";
  u.ctx.textAlign = "left";
  for (let i = firstStretch(starts); i < starts.length && xAt(starts[i]) < view.x1; i++) {
    const at = left + Math.max((xAt(starts[i]) - view.x0) / (view.x1 - view.x0) * width, 0);
    if (at - line < LEAST_STEP * ratio) continue;
    stroke(u, [at, top - above], [at, top + height], colour("soft"), [], 0.8);
    line = at;
    if (at - label < LEAST_LABEL * ratio || at > left + width - 40 * ratio) continue;
    u.ctx.fillText(`step ${count(data.columns["step.number"][i])}`, at + 3 * ratio, top - above);
    label = at;
  }
}

function drawBands(u) {
  u.ctx.save();
  if (tellsPhases()) drawPhases(u);
  drawSteps(u);
  u.ctx.restore();
}

function bandLegend() {
  const kinds = [...new Set(data.columns["phase.kind"])].filter(Boolean).sort();
  return kinds.map((kind) => [data.phases[kind], phaseColour(kind)]);
}
