// Devices of a recording: one is shown; the numbers of each are unpacked when it is first selected.

const DEVICES = [...document.querySelectorAll("[data-about]")].map((about) => Number(about.dataset.about));
const loaded = new Map();

const chosenTab = () => document.querySelector('[data-tab][aria-selected="true"]');
const firstDevice = () => Number(chosenTab()?.dataset.tab ?? DEVICES[0]);

async function loadDevice(number) {
  if (!loaded.has(number)) {
    const found = await readData(number);
    const at = { x0: 0, x1: found.n, y0: 0, y1: found.axis, entry: found.ooms.at(-1) ?? found.peak, block: -1, timed: false };
    loaded.set(number, { data: found, view: at });
  }
  return loaded.get(number);
}

// The view of the previous device is kept.
async function takeDevice(number) {
  const status = document.getElementById("loading");
  if (!loaded.has(number)) status.textContent = "Reading…";
  const next = await loadDevice(number);
  if (data) loaded.get(data.device).view = { ...view };
  data = next.data;
  Object.assign(view, next.view);
  painted.key = "";
  showAxis();
  status.textContent = "";
  for (const id of ["entry", "entry-slider"]) document.getElementById(id).max = data.n - 1;
  for (const part of document.querySelectorAll("[data-device]")) part.hidden = Number(part.dataset.device) !== number;
  for (const tab of document.querySelectorAll("[data-tab]")) {
    const isChosen = Number(tab.dataset.tab) === number;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
  }
}

async function showDevice(number) {
  if (number === data.device) return;
  await takeDevice(number);
  makeTimeline();
  for (const name of Object.keys(watchers)) changed(name);
}

function listenToTabs() {
  const tabs = [...document.querySelectorAll("[data-tab]")];
  const go = (tab) => {
    tab.focus();
    return showDevice(Number(tab.dataset.tab));
  };
  for (const [i, tab] of tabs.entries()) {
    tab.addEventListener("click", () => go(tab));
    tab.addEventListener("keydown", (event) => {
      const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      go(tabs.at(next % tabs.length));
    });
  }
}
