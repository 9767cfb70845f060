// The question: convert the fields to the engine's input and to the page's address.
// Rule: the fields are the only state; a link and the opening fill them in.

const about = JSON.parse(document.getElementById("about").textContent);
const ANOTHER = "another";
const LIKE_AN_A100 = { capability: [8, 0], multiprocessors: 108, threads: 2048, context: 0, process: about.process };
const SIZE_NAMES = {
  layers: "Layers", hidden: "Width", intermediate: "Inner width", heads: "Heads",
  kv_heads: "K/V heads", head_dim: "Head size", vocabulary: "Vocabulary", positions: "Positions",
  experts: "Experts", chosen: "Experts a token", window: "Sliding window", patch: "Patch, pixels",
};
const KINDS = "Kinds"; // label of the vocabulary field for images
const LEAST = { window: 0 }; // other fields have at least 1
const CHOSEN = ["work", "attention", "dtype", "optimizer"]; // fields with a choice of names
const COUNTED = ["batch", "seq", "prompt", "decode", "requests"];

function field(name) {
  return document.getElementById(name);
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function options(select, names) {
  select.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
}

// Grouped by kind of model, those with laws first.
function offerModels() {
  const group = (label, models, disabled) => element("optgroup", { label, disabled },
    ...models.map((model) => element("option", { value: model.name, textContent: model.name })));
  const known = about.models.filter((model) => model.hasLaw);
  const families = [...new Set(known.map((model) => model.family))];
  const groups = families.map((family) => group(family, known.filter((model) => model.family === family), false));
  const others = about.models.filter((model) => !model.hasLaw);
  if (others.length) groups.push(group("no law yet", others, true));
  field("model").replaceChildren(...groups);
}

function offerCards() {
  const list = about.cards.map((card) => {
    return element("option", { value: card.short, textContent: `${card.short} · ${sizeText(card.memory)}` });
  });
  list.push(element("option", { value: ANOTHER, textContent: "another, like an A100" }));
  field("card").replaceChildren(...list);
}

function modelChosen() {
  return about.models.find((model) => model.name === field("model").value);
}

// The fields of the model's family, filled from its configuration.
function showSizes(model, sizes = model.sizes) {
  const keys = Object.keys(about.keys[model.family]);
  const inputs = Object.entries(SIZE_NAMES).filter(([name]) => keys.includes(name)).map(([name, label]) => {
    const input = element("input", { type: "number", min: LEAST[name] ?? 1, step: 1, id: `size-${name}`, value: sizes[name] ?? "" });
    const words = name === "vocabulary" && model.sees ? KINDS : label;
    return element("label", { textContent: `${words} ` }, input);
  });
  field("sizes").replaceChildren(...inputs);
  field("tied").checked = model.tied;
  field("attention").value = attentionOf(model);
  showFollowing(model);
}

// Default attention of a model.
function attentionOf(model) {
  return about.eager.includes(model.family) ? "eager" : "sdpa";
}

// Show derived default values in empty fields.
function showFollowing(model) {
  const { heads, hidden } = sizesGiven(model);
  const head = about.heads[model.family] ?? (heads && hidden ? Math.floor(hidden / heads) : "");
  const follows = { kv_heads: heads, head_dim: head };
  if (model.family === "gpt2") follows.intermediate = hidden ? 4 * hidden : "";
  for (const [name, value] of Object.entries(follows)) {
    const input = field(`size-${name}`);
    if (input) input.placeholder = value ?? "";
  }
}

function sizesGiven(model) {
  const found = {};
  for (const name of Object.keys(about.keys[model.family])) {
    const value = field(`size-${name}`).value;
    if (value !== "") found[name] = Number(value);
  }
  return found;
}

function isAsPublished(model, sizes) {
  const names = Object.keys(about.keys[model.family]);
  return names.every((name) => sizes[name] === model.sizes[name]) && field("tied").checked === model.tied;
}

function cardChosen() {
  const name = field("card").value;
  field("memory-label").hidden = name !== ANOTHER;
  if (name !== ANOTHER) return about.cards.find((card) => card.short === name);
  const memory = Math.round(Number(field("memory").value) * 2 ** 30);
  return { ...LIKE_AN_A100, short: "", name: "a card of that size", memory };
}

// The question for the engine.
function questionAsked() {
  const model = modelChosen(), sizes = sizesGiven(model);
  const isPreset = isAsPublished(model, sizes);
  return {
    model: {
      name: isPreset ? model.name : `a model like ${model.name}`, isPreset,
      family: model.family, keys: about.keys[model.family], tied: field("tied").checked, sizes,
      sees: model.sees, hasOutputBias: about.outputBias.includes(model.family),
      normsHeads: about.headNorms.includes(model.family),
      scaling: model.scaling, isEager: about.eager.includes(model.family), head: about.heads[model.family],
    },
    card: cardChosen(),
    ...Object.fromEntries(CHOSEN.map((name) => [name, field(name).value])),
    ...Object.fromEntries(COUNTED.map((name) => [name, Number(field(name).value)])),
    ...(isTraining() ? { checkpointing: field("checkpointing").checked, lora: Number(field("lora").value) }
      : { checkpointing: false, lora: 0 }),
    purposes: about.purposes.length,
  };
}

function isTraining() {
  return field("work").value === "train";
}

// Convert the fields to an address, and back.
function addressOf(question) {
  const { model, card } = question;
  const words = new URLSearchParams({ model: field("model").value, card: card.short || ANOTHER });
  if (!card.short) words.set("memory", field("memory").value);
  const isServing = question.work === "serve";
  const counts = isServing ? ["batch", "prompt", "decode", "requests"] : ["batch", ...(model.sees ? [] : ["seq"])];
  for (const name of ["dtype", ...(isServing ? [] : ["optimizer"]), ...counts]) words.set(name, question[name]);
  if (isServing) words.set("work", "serve");
  if (question.attention !== attentionOf(modelChosen())) words.set("attention", question.attention);
  if (question.checkpointing) words.set("checkpointing", "1");
  if (question.lora) words.set("lora", question.lora);
  if (!model.isPreset) {
    for (const [name, value] of Object.entries(model.sizes)) words.set(name, value);
    if (!model.sees) words.set("tied", Number(model.tied));
  }
  return `#${words}`;
}

// given: texts by name, from an address or the opening. Other fields are not changed.
function fillIn(given) {
  const has = (name) => given[name] !== undefined && given[name] !== null && given[name] !== "";
  if (has("model") && about.models.some((model) => model.name === given.model)) field("model").value = given.model;
  const model = modelChosen();
  const isMadeUp = Object.keys(about.keys[model.family]).some(has);
  showSizes(model, isMadeUp ? given : model.sizes);
  if (has("tied")) field("tied").checked = String(given.tied) === "1";
  const isKnown = about.cards.some((card) => card.short === given.card);
  if (has("card") || has("memory")) field("card").value = isKnown ? given.card : ANOTHER;
  if (has("memory")) field("memory").value = given.memory;
  for (const name of [...CHOSEN, ...COUNTED]) if (has(name)) field(name).value = given[name];
  if (!has("work")) field("work").value = "train";
  field("lora").value = has("lora") ? given.lora : 0;
  field("checkpointing").checked = has("checkpointing") && Boolean(Number(given.checkpointing));
  slideTo();
  showFollowing(model);
}

// The sliders follow the numbers; sliders of tokens end at the model's number of positions.
function slideTo() {
  const positions = Number(field("size-positions")?.value) || 8192;
  document.body.dataset.work = field("work").value;
  document.body.dataset.input = modelChosen().sees ? "images" : "tokens";
  for (const name of ["seq", "prompt"]) field(`${name}-slider`).max = Math.max(positions, 64);
  for (const name of ["batch", "seq", "prompt"]) field(`${name}-slider`).value = field(name).value;
}
