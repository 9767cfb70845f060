// Send questions from the fields to the engine, in a worker if possible, and show the answers.

const ADDRESS_AFTER = 200; // milliseconds without a new question: browsers limit changes of the address
const sent = new Set(); // families whose laws the engine has
let asked = 0, question = null, engine = null, addressing = 0;

function hear({ id, answer, largest, refusal }) {
  if (id !== asked) return; // answer to an older question
  if (answer) showAnswer(answer, question);
  if (largest) showLargest(largest, question);
  if (refusal) showRefusal(refusal, question);
  document.body.dataset.settled = largest || refusal ? String(id) : "";
}

// The engine: a worker made of the page's own script, or else this page.
function startEngine() {
  const here = { postMessage: (message) => handle(message, hear) };
  try {
    const text = document.getElementById("engine").textContent;
    const worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => hear(data);
    worker.onerror = () => {
      engine = here;
      sent.clear();
      ask();
    };
    return worker;
  } catch { // some browsers refuse workers for pages opened from a file
    return here;
  }
}

// Answer at once, and after every change.
function ask() {
  question = questionAsked();
  const name = lawsOf(question.model).join("_");
  if (about.families[name] && !sent.has(name)) {
    sent.add(name);
    const laws = document.querySelector(`[data-laws="${name}"]`).textContent.trim();
    engine.postMessage({ name, about: about.families[name], laws, programs: about.programs[name] });
  }
  clearTimeout(addressing);
  addressing = setTimeout(() => history.replaceState(null, "", addressOf(question)), ADDRESS_AFTER);
  engine.postMessage({ id: ++asked, question });
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  field("theme").textContent = dark ? "Light colours" : "Dark colours";
}

async function copyFrom(button, words) {
  const label = button.dataset.label ??= button.textContent;
  const done = await navigator.clipboard?.writeText(words).then(() => true, () => false);
  button.textContent = done ? "Copied" : "Copying is refused here";
  setTimeout(() => { button.textContent = label; }, 2000);
}

function listen() {
  field("question").addEventListener("input", ({ target }) => {
    if (target.id === "model") {
      showSizes(modelChosen());
      const most = modelChosen().sizes.positions;
      if (most && about.keys[modelChosen().family].positions) {
        field("seq").value = Math.min(field("seq").value, most);
        field("prompt").value = Math.min(field("prompt").value, Math.max(most - field("decode").value, 1));
      }
    }
    if (target.id === "card" && !field("memory").value) field("memory").value = 24;
    if (target.id.endsWith("-slider")) field(target.id.replace("-slider", "")).value = target.value;
    showFollowing(modelChosen());
    slideTo();
    ask();
  });
  field("question").addEventListener("submit", (event) => event.preventDefault());
  field("take-largest").addEventListener("click", ({ target }) => {
    field("batch").value = target.dataset.batch;
    slideTo();
    ask();
  });
  field("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  field("copy").addEventListener("click", ({ target }) => copyFrom(target, field("command").textContent));
  field("share").addEventListener("click", ({ target }) => {
    copyFrom(target, new URL(addressOf(question), location.href).href);
  });
  addEventListener("hashchange", ({ newURL }) => {
    fillIn(Object.fromEntries(new URLSearchParams(new URL(newURL).hash.slice(1))));
    ask();
  });
}

function start() {
  document.body.classList.remove("no-js");
  setTheme(document.documentElement.dataset.theme === "dark");
  offerModels();
  offerCards();
  options(field("dtype"), about.dtypes);
  options(field("optimizer"), about.optimizers);
  options(field("attention"), about.attentions);
  const { memory, ...opening } = about.opening;
  fillIn({ ...opening, checkpointing: Number(opening.checkpointing), memory: memory && memory / 2 ** 30 });
  if (location.hash) fillIn(Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
  engine = startEngine();
  listen();
  ask();
  document.body.dataset.ready = "true";
}

start();
