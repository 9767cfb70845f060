// Moments as links: the fragment `#entry=123` is the chosen moment, in both directions; with several
// devices it is `#device=1&entry=123`.

const SETTLES = 250; // milliseconds until a chosen moment is written to the address

function momentOf(fragment) {
  const found = new URLSearchParams(fragment.replace(/^#/, ""));
  const whole = (name) => (/^\d+$/.test(found.get(name) ?? "") ? Number(found.get(name)) : null);
  const device = whole("device");
  return { device: DEVICES.includes(device) ? device : null, entry: whole("entry") };
}

const fragmentOf = (device, entry) => (DEVICES.length > 1 ? `#device=${device}&entry=${entry}` : `#entry=${entry}`);
const linkToMoment = () => location.href.replace(/#.*$/, "") + fragmentOf(data.device, view.entry);

let settling = 0;

function writeMoment() {
  clearTimeout(settling);
  settling = setTimeout(() => {
    const now = fragmentOf(data.device, view.entry);
    if (location.hash !== now) history.replaceState(null, "", now);
  }, SETTLES);
}

async function readMoment() {
  const { device, entry } = momentOf(location.hash);
  if (device !== null) await showDevice(device);
  if (entry !== null) setEntry(entry);
}

function listenToMoments() {
  addEventListener("hashchange", readMoment);
  for (const link of document.querySelectorAll("a[data-entry]")) {
    const entry = Number(link.dataset.entry);
    const device = link.closest("[data-device]")?.dataset.device ?? DEVICES[0];
    link.href = fragmentOf(device, entry);
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // opens a new window
      event.preventDefault();
      goTo("state", document.getElementById("entry-slider"), () => setEntry(entry));
    });
  }
  const share = document.getElementById("share");
  share.setAttribute("aria-live", "polite");
  share.addEventListener("click", () => copyFrom(share, linkToMoment()));
}
