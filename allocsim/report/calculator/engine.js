// Will it fit: a question answered by the laws, and the largest batch that fits.
// Rule: no document is asked here; a worker runs this, or where there is none the page itself.

const MOST = 2 ** 24; // of a batch and a length
const MOST_BATCH = 2 ** 20; // of the search
const OLDEST_CAPABILITY = 8;
const ENDLESS = 2 ** 40; // the room of a card without end
const KEPT_PROGRAMS = 4;
const laws = new Map(); // by name, a promise of a program's laws
const unrolledPrograms = new Map();

// Digits in groups of three, as Python prints them.
function counted(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

function takeLaws(name, about, text) {
  laws.set(name, unpacked(text).then((buffer) => ({ about, columns: columnsOf(about.columns, buffer) })));
}

// The name of the laws of a question's program.
function lawsName({ model, dtype, optimizer, checkpointing, lora }) {
  const parts = [model.family, model.tied ? "tied" : "untied", dtype, optimizer];
  if (checkpointing) parts.push("checkpointing");
  if (lora) parts.push("lora");
  return parts.join("_");
}

// The sizes of a model, with those that follow from others where they are not given.
function sizesOf(model) {
  const found = {};
  for (const name of Object.keys(model.keys)) if (model.sizes[name]) found[name] = model.sizes[name];
  if (found.heads && found.hidden) {
    found.kv_heads ??= found.heads;
    found.head_dim ??= floorDiv(found.hidden, found.heads);
  }
  if (found.hidden && model.family === "gpt2") found.intermediate ??= 4 * found.hidden;
  found.window ??= 0; // none
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

// Raises Refused for a question that no program could be.
function refuseImpossible({ model, batch, seq, lora }) {
  for (const [name, value] of Object.entries({ batch, seq })) {
    if (!Number.isSafeInteger(value) || value < 1 || value > MOST) {
      throw new Refused(`${name} ${value} is not possible; expected 1 to ${counted(MOST)}`);
    }
  }
  if (!Number.isSafeInteger(lora) || lora < 0) throw new Refused(`lora ${lora} is not possible; expected a rank`);
  const most = model.keys.positions && model.sizes.positions;
  if (most && seq > most) {
    throw new Refused(`${model.name} has ${counted(most)} positions; ${counted(seq)} tokens are too many`);
  }
}

// With checkpointing transformers makes a mask, and with a window that the sequence fills; its rows are
// padded to 16 bytes.
function maskUnit({ checkpointing, dtype, model, seq }) {
  const window = model.sizes.window ?? 0;
  if (!checkpointing && !(window > 0 && window <= seq)) return 0;
  return dtype === "fp32" ? 4 : 8;
}

// The law that a question falls under, and its variables.  Raises Refused, saying why there is none.
async function found(question) {
  refuseImpossible(question);
  const name = lawsName(question), { model, card, batch, seq, lora } = question;
  if (!laws.has(name)) throw new Refused(`there is no law for ${name}`);
  const { about, columns } = await laws.get(name);
  if (card.capability[0] < OLDEST_CAPABILITY) {
    throw new Refused(`${card.name}: laws are for cards of compute capability 8.0 or later`);
  }
  const sizes = { ...sizesOf(model), batch, length: seq, lora };
  const regime = regimeOf(sizes, card, maskUnit(question));
  if (!about.regimes[regime]) {
    throw new Refused(
      `there is no law for ${name} at batch ${batch} x ${counted(seq)} tokens: its kernels' way there (${regime}) was not recorded`,
    );
  }
  const law = lawOf(about, columns, regime);
  return { law, rows: rowsOf(law, `${name}/${regime}`, sizes.layers), variables: variablesOf(sizes, card), about };
}

// The last few programs are kept: a search asks for one of them again and again.
function rowsOf(law, name, layers) {
  const key = `${name}/${layers}`;
  const rows = unrolledPrograms.get(key) ?? unrolled(law, layers);
  unrolledPrograms.delete(key);
  unrolledPrograms.set(key, rows);
  if (unrolledPrograms.size > KEPT_PROGRAMS) unrolledPrograms.delete(unrolledPrograms.keys().next().value);
  return rows;
}

// What `allocsim fit --engine laws` answers.  needed: null where it does not fit a card without end either.
async function answerOf(question) {
  const { law, rows, variables, about } = await found(question);
  const room = question.card.memory - question.card.context;
  const run = (bytes) => replayed(law, rows, variables, bytes, question.purposes);
  const ran = run(room);
  const fits = !ran.isOutOfMemory, unlimited = fits ? ran : run(ENDLESS);
  const needed = unlimited.isOutOfMemory ? null : unlimited.reserved;
  return { ...ran, fits, room, needed, spare: room - (needed ?? ran.reserved), release: about.release };
}

// The largest batch that fits, from the one asked about.  more: why none is known of the next,
// "" where it does not fit.  isStale: whether nobody waits for it any more.
async function largestOf(question, isStale) {
  const tried = new Map();
  let more = "";
  const fits = async (batch) => {
    if (!tried.has(batch)) {
      const { law, rows, variables } = await found({ ...question, batch });
      const room = question.card.memory - question.card.context;
      tried.set(batch, !replayed(law, rows, variables, room, question.purposes).isOutOfMemory);
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

// One message of the page.  reply: takes what is to be told of it.
async function handle(message, reply) {
  if (message.laws) {
    takeLaws(message.name, message.about, message.laws);
    return;
  }
  const { id, question } = message;
  newest = id;
  const isStale = () => id !== newest;
  await new Promise((done) => { setTimeout(done); }); // a slider asks faster than a deep model is answered
  if (isStale()) return;
  try {
    reply({ id, answer: await answerOf(question) });
    if (!isStale()) reply({ id, largest: await largestOf(question, isStale) });
  } catch (error) {
    reply({ id, refusal: error.message });
  }
}

if (typeof document === "undefined") self.onmessage = ({ data }) => handle(data, (told) => self.postMessage(told));
