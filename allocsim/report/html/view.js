// The view: x0 to x1 (axis.js), y0 to y1 (units of 512 bytes), the moment and the block.

let data;
const view = { x0: 0, x1: 1, y0: 0, y1: 1, entry: 0, block: -1, timed: false };
const watchers = { view: [], entry: [], block: [] };
const waiting = new Set();

function changed(what) {
  if (!waiting.size) {
    requestAnimationFrame(() => {
      const now = [...waiting];
      waiting.clear();
      const calls = new Set(now.flatMap((name) => watchers[name]));
      for (const call of calls) call();
    });
  }
  waiting.add(what);
}

function clamped(low, high, least, most) {
  const span = Math.min(Math.max(high - low, Math.min(least, most)), most);
  const start = Math.min(Math.max(low, 0), most - span);
  return [start, start + span];
}

function setX(low, high) {
  [view.x0, view.x1] = clamped(low, high, 10, xEnd());
  changed("view");
}

function setY(low, high) {
  [view.y0, view.y1] = clamped(low, high, 16, data.axis);
  changed("view");
}

function zoomX(factor, at = (view.x0 + view.x1) / 2) {
  setX(at - (at - view.x0) * factor, at + (view.x1 - at) * factor);
}

function zoomY(factor, at = (view.y0 + view.y1) / 2) {
  setY(at - (at - view.y0) * factor, at + (view.y1 - at) * factor);
}

function moveX(share) {
  const by = (view.x1 - view.x0) * share;
  setX(view.x0 + by, view.x1 + by);
}

function moveY(share) {
  const by = (view.y1 - view.y0) * share;
  setY(view.y0 + by, view.y1 + by);
}

function showEntry(entry) {
  const margin = (view.x1 - view.x0) / 2;
  const at = xAt(entry);
  if (at < view.x0 || at > view.x1) setX(at - margin, at + margin);
}

// An entry lasts until the next one: 74.9 is still entry 74.
function setEntry(entry, shows = true) {
  view.entry = Math.min(Math.max(Math.floor(entry), 0), data.n - 1);
  if (shows) showEntry(view.entry);
  changed("entry");
}

function setBlock(row) {
  view.block = row;
  changed("block");
}

// Texts.

const count = (number) => Math.round(number).toLocaleString("en-US");

const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${Math.round(number) === 1 ? noun : nouns}`;

function sizeText(bytes) {
  if (bytes <= 1024) return `${bytes} bytes`;
  if (bytes <= 1048576) return `${(bytes / 1024).toFixed(2)} KiB`;
  if (bytes <= 1073741824) return `${(bytes / 1048576).toFixed(2)} MiB`;
  return `${(bytes / 1073741824).toFixed(2)} GiB`;
}

const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Shorten a long path in the middle, its least useful part.
const short = (words) => (words.length > 90 ? `${words.slice(0, 30)}…${words.slice(-59)}` : words);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// shape: class of page.css for the kind of mark; an area if omitted.
function legendItems(items) {
  return items.flatMap(([name, paint, shape = ""]) => {
    const swatch = element("i", { className: shape });
    swatch.style.color = paint;
    return [element("span", {}, swatch, name), " "];
  });
}

// A BigInt: addresses of some devices exceed JavaScript's exact integers.
function addressOf(place) {
  const offset = data.columns["range.offset"];
  let low = 0;
  let high = offset.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offset[middle] <= place) low = middle;
    else high = middle - 1;
  }
  const start = (BigInt(data.columns["range.high"][low]) << 32n) + BigInt(data.columns["range.low"][low]);
  return start + BigInt((place - offset[low]) * data.unit);
}

const hex = (address) => `0x${address.toString(16)}`;

function unitOf(bytes) {
  if (bytes >= 2 ** 31) return ["GiB", 2 ** 30];
  return bytes >= 2 ** 21 ? ["MiB", 2 ** 20] : ["KiB", 2 ** 10];
}

// Round numbers of the unit from low to high, in bytes; about `most` of them.
function splitsOf(low, high, unit, most) {
  const rough = (high - low) / unit / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power * unit;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
}

// The errors in view; if there are many, full-height lines would hide the picture.
function errorsInView() {
  const shown = data.ooms.filter((entry) => view.x0 <= xAt(entry) && xAt(entry) <= view.x1);
  return { shown, crowd: shown.length > 20 };
}

function wheel(event, at, zooms) {
  // The plain wheel scrolls the page.
  if (event.ctrlKey || event.altKey) {
    event.preventDefault();
    zooms(Math.exp(Math.sign(event.deltaY) * 0.25), at);
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    moveX(Math.sign(event.deltaX || event.deltaY) * 0.1);
  }
}
