// Owner tables: select a table, sort it, and filter its rows.

const COLLATOR = new Intl.Collator("en", { numeric: true });

function startOwners() {
  for (const panel of document.querySelectorAll(".owners")) {
    const tables = [...panel.querySelectorAll("[data-by]")];
    const by = panel.querySelector(".owners-by"), find = panel.querySelector(".owners-find");
    for (const table of tables) listenToHeads(table.querySelector("table"));
    const show = () => {
      for (const table of tables) table.hidden = table.dataset.by !== by.value;
      findOwners(panel, tables.find((table) => !table.hidden), find.value);
    };
    by.addEventListener("change", show);
    find.addEventListener("input", show);
    show();
  }
}

function listenToHeads(table) {
  for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
    const button = element("button", { type: "button", textContent: head.textContent });
    button.addEventListener("click", () => sortBy(table, column));
    head.replaceChildren(button);
  }
  table.tHead.rows[0].cells[1].setAttribute("aria-sort", "descending"); // the initial order
}

// Sort figures with the largest first, words alphabetically; a second click reverses the order.
function sortBy(table, column) {
  const head = table.tHead.rows[0].cells[column];
  const key = (row) => row.cells[column].dataset.n ?? row.cells[column].textContent;
  const isFigure = table.tBodies[0].rows[0]?.cells[column].dataset.n !== undefined;
  const before = head.getAttribute("aria-sort");
  const first = isFigure ? "descending" : "ascending", second = isFigure ? "ascending" : "descending";
  const order = before === first ? second : first;
  const compare = isFigure ? (a, b) => key(a) - key(b) : (a, b) => COLLATOR.compare(key(a), key(b));
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].sort((a, b) => sign * compare(a, b));
  table.tBodies[0].append(...rows);
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
}

// A row matches if it contains every word.
function findOwners(panel, shown, wanted) {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...shown.querySelectorAll("tbody tr")];
  let found = 0, bytes = 0;
  for (const row of rows) {
    const told = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => told.includes(word));
    if (row.hidden) continue;
    found += 1;
    bytes += Number(row.cells[1].dataset.n);
  }
  panel.querySelector(".owners-text").textContent = words.length
    ? `${count(found)} of ${plural(rows.length, "row")}, ${sizeText(bytes)}`
    : plural(rows.length, "row");
}
