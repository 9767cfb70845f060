// Answer by the laws if a program fits, and find the largest batch that fits.
// Rule: this script uses no document; it runs in a worker, or in the page if there is none.

const MOST = 2 ** 24; // limit of a batch and a length
const MOST_BATCH = 2 ** 20; // limit of the search
const OLDEST_CAPABILITY = 8;
const ENDLESS = 2 ** 40; // bytes of a card without a limit
const KEPT_PROGRAMS = 4;
const FEWEST_ROWS = 80; // minimum number of rows of a step
const TWO_KINDS = 2; // image classes if the configuration names none
const STEPS = 4; // of a training program
const OTHER_ADAFACTOR = "this page has Adafactor for the presets' matrices, without adapters; allocsim fit has more";
const laws = new Map(); // promise of a family's laws, by name
const partsOfPrograms = new Map(); // names of the parts of a program, by its name
const keptPrograms = new Map();

// Format a count with thousands separators, as Python does.
function counted(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

// programs: the parts of each program of the family.
function takeLaws(name, about, text, programs) {
  for (const [program, parts] of Object.entries(programs)) partsOfPrograms.set(program, parts);
  laws.set(name, unpacked(text).then((buffer) => ({ about, columns: columnsOf(about.columns, buffer) })));
}

// Prefix of the names of a model's programs; a vision model has no embedding to tie.
function lawsOf(model) {
  return model.sees ? [model.family] : [model.family, model.tied ? "tied" : "untied"];
}

// The name of the laws of a question's program.
function lawsName({ model, work, dtype, attention, optimizer, checkpointing, lora }) {
  const isEager = attention === "eager", parts = lawsOf(model);
  if (work === "serve") {
    // Requests of fp16 and bf16 are the same.
    parts.push(isEager || dtype === "fp32" ? dtype : "16-bit", "serve");
    return [...parts, ...(isEager ? ["eager"] : [])].join("_");
  }
  parts.push(dtype, optimizer);
  if (checkpointing) parts.push("checkpointing");
  if (isEager) parts.push("eager");
  if (lora) parts.push("lora");
  return parts.join("_");
}

// The sizes of a model; missing sizes are derived from others.
function sizesOf(model) {
  const found = {};
  for (const name of Object.keys(model.keys)) if (model.sizes[name]) found[name] = model.sizes[name];
  if (found.heads && found.hidden) {
    found.kv_heads ??= found.heads;
    found.head_dim ??= model.head ?? floorDiv(found.hidden, found.heads);
  }
  if (found.hidden && model.family === "gpt2") found.intermediate ??= 4 * found.hidden;
  found.window ??= 0; // none
  if (model.sees && model.keys.vocabulary) found.vocabulary ??= TWO_KINDS;
  if (model.hasOutputBias) found.output_bias = 1;
  if (model.normsHeads) found.head_norms = 1;
  for (const [name, key] of Object.entries(model.keys)) {
    if (name === "window" && found.window === 0) continue;
    if (!Number.isSafeInteger(found[name]) || found[name] < 1 || found[name] >= 2 ** 31) {
      throw new Refused(`${key} is ${found[name] ?? "missing"}; expected a whole number, 1 or more`);
    }
  }
  if (found.heads % found.kv_heads || found.hidden % found.heads) {
    throw new Refused(
      `${found.hidden} wide with ${found.heads} heads, ${found.kv_heads} of keys and values: they do not divide`,
    );
  }
  return found;
}

// Throw Refused for a question that no program can have.
function refuseImpossible({ model, work, dtype, attention, batch, seq, prompt, decode, requests, lora }) {
  const isServing = work === "serve";
  for (const [name, value] of Object.entries(isServing ? { batch, prompt, decode, requests } : { batch, seq })) {
    if (!Number.isSafeInteger(value) || value < 1 || value > MOST) {
      throw new Refused(`${name} ${value} is not possible; expected 1 to ${counted(MOST)}`);
    }
  }
  if (!Number.isSafeInteger(lora) || lora < 0) throw new Refused(`lora ${lora} is not possible; expected a rank`);
  if (isServing && model.sees) throw new Refused(`${model.name} answers no prompts; serving is for language models`);
  if (isServing && dtype.startsWith("autocast")) {
    throw new Refused(`serving in ${dtype} is not usual; expected fp32, bf16 or fp16`);
  }
  const most = !model.sees && model.keys.positions && model.sizes.positions, longest = isServing ? prompt + decode : seq;
  if (most && longest > most) {
    throw new Refused(`${model.name} has ${counted(most)} positions; ${counted(longest)} tokens are too many`);
  }
  if (model.sees && attention === "eager") throw new Refused("there is no law for attention 'eager'");
  if (model.isEager && attention !== "eager") {
    throw new Refused(`transformers runs ${model.name} with attention 'eager' alone`);
  }
}

// With checkpointing, transformers creates a mask, also with a window that the sequence fills; its rows
// are padded to 8 numbers. Eager attention adds the mask to the scores.
function maskUnit({ attention, checkpointing, model, seq }) {
  if (attention === "eager") return 1;
  const window = model.sizes.window ?? 0;
  if (!(checkpointing && !model.sees) && !(window > 0 && window <= seq)) return 0;
  return 8;
}

// The numbers of a program's laws by name.
function lawNumbers(about, program) {
  return Object.assign({}, ...partsOfPrograms.get(program).map((part) => about.parts[part]));
}

// The sizes of the work, without those of the model.
function workOf({ batch, lora, dtype }, length) {
  return { batch, length, lora, logit_bytes: dtype === "fp32" ? 4 : 2 };
}

// Training: each step runs the model forward and backward, then the optimizer, then frees the gradients.
function stepsOf(question, sizes, length) {
  const regime = regimeOf({ ...sizes, ...workOf(question, length) }, question.card, maskUnit(question));
  const factored = /^(bf|fp)16$/.test(question.dtype) ? 2 : 4;
  const ending = question.optimizer === "adafactor" ? `.${factoredWay({ positions: 0, ...sizes, factored })}` : "";
  const made = regime.endsWith(".narrow") ? "make.narrow" : "make";
  const names = [made, `first.${regime}`, `optimizer.first${ending}`];
  for (let step = 1; step < STEPS; step++) names.push(`zero.${regime}`, `again.${regime}`, `optimizer.next${ending}`);
  return [...names, `last.${regime}`, `optimizer.end${ending}`, "drop"].map((name) => ({ name, length }));
}

// The stretches of a question's program, each with the tokens that attention covers.
function stretchesOf(question, sizes) {
  const { model, card, seq, prompt, decode, requests } = question;
  const at = (length) => ({ ...sizes, ...workOf(question, length) });
  if (question.work !== "serve") {
    const length = model.sees ? floorDiv(PIXELS, sizes.patch) ** 2 + 1 : seq; // one class token besides the patches
    return stepsOf(question, sizes, length);
  }
  refuseTooLong(requests * decode * FEWEST_ROWS);
  const isEager = question.attention === "eager", isFused = !isEager && question.dtype !== "fp32";
  const scaling = model.scaling + (servedWindow(at(prompt), isEager) ? ".window" : "");
  const before = servedRegimeOf(at(prompt), card, isFused, false, isEager);
  const steps = [];
  for (let length = prompt + 1; length <= prompt + decode; length++) {
    const regime = servedRegimeOf(at(length), card, isFused, true, isEager);
    steps.push({ name: `step.${regime}`, length, isStep: true }, { name: `after.${regime}`, length, isStep: true });
  }
  steps.pop(); // nothing follows the last token
  const found = [{ name: `make.${scaling}`, length: prompt }, { name: `start.${before}`, length: prompt }, ...steps];
  for (let request = 1; request < requests; request++) found.push({ name: `between.${before}`, length: prompt }, ...steps);
  return [...found, { name: `end.${scaling}`, length: prompt }];
}

// Return the program of a question and the variables of its stretches. Throws Refused with the reason
// if there is none.
async function found(question) {
  refuseImpossible(question);
  const name = lawsName(question), { model, card, batch } = question;
  if (!partsOfPrograms.has(name)) throw new Refused(`there is no law for ${name}`);
  const { about, columns } = await laws.get(lawsOf(model).join("_"));
  if (card.capability[0] < OLDEST_CAPABILITY) {
    throw new Refused(`${card.name}: laws are for cards of compute capability 8.0 or later`);
  }
  const sizes = sizesOf(model), stretches = stretchesOf(question, sizes);
  const numbers = lawNumbers(about, name), missing = stretches.find((stretch) => numbers[stretch.name] === undefined);
  if (missing?.name.startsWith("optimizer.")) throw new Refused(OTHER_ADAFACTOR);
  if (missing) {
    const tokens = counted(question.work === "serve" ? question.prompt : question.seq);
    const length = model.sees ? "" : ` x ${tokens} tokens`;
    throw new Refused(
      `there is no law for ${name} at batch ${batch}${length}: its kernels' way there (${missing.name.replace(/^first\./, "")}) was not recorded`,
    );
  }
  const names = stretches.map((stretch) => stretch.name), key = [name, sizes.layers, ...names].join("/");
  const program = kept(key, () => programOf(names, (each) => lawOf(about, columns, numbers[each]), sizes.layers));
  const known = new Map(); // results of repeated stretches
  const variables = stretches.map(({ name: each, length, isStep }) => {
    const place = `${each}/${length}`;
    if (!known.has(place)) known.set(place, variablesOf({ ...sizes, ...workOf(question, length) }, card, isStep));
    return known.get(place);
  });
  return { program, variables, about };
}

// The last few programs are kept, because a search uses one of them repeatedly.
function kept(key, make) {
  const program = keptPrograms.get(key) ?? make();
  keptPrograms.delete(key);
  keptPrograms.set(key, program);
  if (keptPrograms.size > KEPT_PROGRAMS) keptPrograms.delete(keptPrograms.keys().next().value);
  return program;
}

// The answer of `allocsim fit --engine laws`. needed: null if it fails without a limit as well.
async function answerOf(question) {
  const { program, variables, about } = await found(question);
  const room = question.card.memory - question.card.context;
  const run = (bytes) => replayed(program, variables, bytes, question.purposes);
  const ran = run(room);
  const fits = !ran.isOutOfMemory, unlimited = fits ? ran : run(ENDLESS);
  const needed = unlimited.isOutOfMemory ? null : unlimited.reserved;
  return { ...ran, fits, room, needed, spare: room - (needed ?? ran.reserved), release: about.release };
}

// Find the largest batch that fits, from the given one. more: why the next one has no answer,
// "" if it does not fit. isStale: returns true if the answer is no longer needed.
async function largestOf(question, isStale) {
  const tried = new Map();
  let more = "";
  const fits = async (batch) => {
    if (!tried.has(batch)) {
      const { program, variables } = await found({ ...question, batch });
      const room = question.card.memory - question.card.context;
      tried.set(batch, !replayed(program, variables, room, question.purposes).isOutOfMemory);
    }
    return tried.get(batch);
  };
  let low = 0, high = MOST_BATCH + 1, next = question.batch;
  while (high - low > 1) {
    if (isStale()) return null;
    let is = false;
    try {
      is = await fits(next);
      if (!is) more = "";
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      more = error.message;
    }
    if (is) low = next;
    else high = next;
    next = high > MOST_BATCH ? Math.min(2 * low, MOST_BATCH) : low + ((high - low) >> 1);
    await new Promise((done) => { setTimeout(done); }); // let newer questions in
  }
  return { batch: low, more };
}

let newest = 0;

// Handle one message of the page. reply: receives the results.
async function handle(message, reply) {
  if (message.laws) {
    takeLaws(message.name, message.about, message.laws, message.programs);
    return;
  }
  const { id, question } = message;
  newest = id;
  const isStale = () => id !== newest;
  await new Promise((done) => { setTimeout(done); }); // a slider asks faster than a deep model can be computed
  if (isStale()) return;
  try {
    reply({ id, answer: await answerOf(question) });
    if (!isStale()) reply({ id, largest: await largestOf(question, isStale) });
  } catch (error) {
    reply({ id, refusal: error.message });
  }
}

if (typeof document === "undefined") self.onmessage = ({ data }) => handle(data, (told) => self.postMessage(told));
