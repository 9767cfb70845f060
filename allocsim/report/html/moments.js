// Moments as links: the fragment `#entry=123` is the moment that is chosen, both ways.

const SETTLES = 250; // milliseconds after which a moment that no longer moves is written down

function momentOf(fragment) {
  const found = new URLSearchParams(fragment.replace(/^#/, ""));
  const entry = found.get("entry");
  return { entry: /^\d+$/.test(entry ?? "") ? Number(entry) : null };
}

const fragmentOf = (entry) => `#entry=${entry}`;
const linkToMoment = () => location.href.replace(/#.*$/, "") + fragmentOf(view.entry);

let settling = 0;

function writeMoment() {
  clearTimeout(settling);
  settling = setTimeout(() => {
    if (momentOf(location.hash).entry !== view.entry) history.replaceState(null, "", fragmentOf(view.entry));
  }, SETTLES);
}

function readMoment() {
  const { entry } = momentOf(location.hash);
  if (entry !== null) setEntry(entry);
}

function listenToMoments() {
  readMoment();
  addEventListener("hashchange", readMoment);
  for (const link of document.querySelectorAll("a[data-entry]")) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a new window's
      event.preventDefault();
      goTo("state", document.getElementById("entry-slider"), () => setEntry(Number(link.dataset.entry)));
    });
  }
  const share = document.getElementById("share");
  share.setAttribute("aria-live", "polite");
  share.addEventListener("click", () => copyFrom(share, linkToMoment()));
}
