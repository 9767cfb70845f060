// Allocated memory by category, as areas over each other below the timeline; the axis is the timeline's.

const AREAS_HEIGHT = 200;

const areas = document.getElementById("areas-canvas");
const tellsCategories = () => data.categories.length > 0;
const categoryColour = (kind) => colour(`category-${data.categories[kind].number}`);

// Bytes of each category after an entry.
function bytesOfCategories(entry) {
  const { blocks } = data;
  const held = new Array(data.categories.length).fill(0);
  for (let i = 0; i < blocks.count; i++) {
    if (blocks.born[i] <= entry && entry < blocks.freed[i]) held[blocks.category[i]] += blocks.size[i];
  }
  return held.map((size) => size * data.unit);
}

// For each category, its mean bytes in each column; two running sums turn corners into sums.
function meansOf(columns) {
  const { blocks } = data;
  const scale = columns / (view.x1 - view.x0);
  const means = data.categories.map(() => new Float64Array(columns + 2));
  const born = across(blocks, "born"), freed = across(blocks, "freed");
  const step = (sums, x, size) => {
    const at = Math.floor(x);
    sums[at] += size * (1 - x + at);
    sums[at + 1] += size * (x - at);
  };
  for (let i = 0; i < blocks.count; i++) {
    if (freed[i] <= view.x0 || born[i] >= view.x1 || freed[i] <= born[i]) continue;
    const sums = means[blocks.category[i]];
    step(sums, Math.max((born[i] - view.x0) * scale, 0), blocks.size[i] * data.unit);
    step(sums, Math.min((freed[i] - view.x0) * scale, columns), -blocks.size[i] * data.unit);
  }
  for (const sums of means) for (let x = 1; x < columns; x++) sums[x] += sums[x - 1];
  return means;
}

function drawAreas() {
  const section = areas.parentElement;
  section.hidden = !tellsCategories();
  if (section.hidden) return;
  areas.style.marginLeft = `${plot.bbox.left / devicePixelRatio}px`;
  areas.style.width = `${plot.bbox.width / devicePixelRatio}px`;
  const columns = Math.max(Math.round(plot.bbox.width), 10);
  const rows = Math.round(AREAS_HEIGHT * devicePixelRatio);
  Object.assign(areas, { width: columns, height: rows });
  const context = areas.getContext("2d");
  const top = data.columns.allocated.reduce((most, bytes) => Math.max(most, bytes), 1);
  const scale = rows / top;
  const base = new Float64Array(columns);
  meansOf(columns).forEach((sums, kind) => {
    context.fillStyle = categoryColour(kind);
    for (let x = 0; x < columns; x++) {
      if (sums[x] <= 0) continue;
      context.fillRect(x, rows - (base[x] + sums[x]) * scale, 1, sums[x] * scale);
      base[x] += sums[x];
    }
  });
  const at = (xAt(view.entry) - view.x0) / (view.x1 - view.x0) * columns;
  context.strokeStyle = colour("ink");
  context.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  context.strokeRect(at, -1, 0, rows + 2);
  const held = bytesOfCategories(view.entry);
  document.getElementById("areas-legend").replaceChildren(`By category, from 0 to ${sizeText(top)} upwards, after entry ${count(view.entry)}: `, ...legendItems(
    data.categories.map(({ name }, kind) => [`${name} ${sizeText(held[kind])}`, categoryColour(kind)]),
  ));
}

function listenToAreas() {
  areas.addEventListener("click", (event) => {
    const box = areas.getBoundingClientRect();
    setEntry(entryAt(view.x0 + (event.clientX - box.left) / box.width * (view.x1 - view.x0)), false);
  });
}
