// Buttons that copy a line to paste, or a link to a moment.

async function copied(words) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(words);
      return true;
    } catch { /* refused: the old way needs no permission */ }
  }
  const field = element("textarea", { value: words, className: "unseen", readOnly: true });
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus({ preventScroll: true });
  return done;
}

async function copyFrom(button, words) {
  const label = button.dataset.label ??= button.textContent;
  button.textContent = (await copied(words)) ? "Copied" : "Select the line and copy it";
  clearTimeout(button.timer);
  button.timer = setTimeout(() => { button.textContent = label; }, 2000);
}

function listenToCopies() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", () => copyFrom(button, button.dataset.copy));
  }
}
