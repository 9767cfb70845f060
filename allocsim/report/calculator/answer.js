// Draw the answer: verdict, bar, figures, and the categories of the memory.
// Rule: every figure comes from the engine; rounded sizes stand beside the exact bytes.

const UNITS = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const OFFERED = 5; // largest number of offered sizes
const IDLE = "idle", MISSING = "missing"; // kinds that are not categories

// Format a size as PyTorch and the command do; halves are rounded to the even digit.
function sizeText(bytes) {
  const [unit, one] = UNITS.find(([, size]) => bytes > size) ?? ["", 1];
  if (!unit) return `${bytes} bytes`;
  const hundredths = (bytes * 100) / one, low = Math.floor(hundredths), rest = hundredths - low;
  const rounded = rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
  return `${(rounded / 100).toFixed(2)} ${unit}`;
}

function put(name, ...words) {
  field(name).replaceChildren(...words);
}

// A size, with its exact bytes below.
function exactly(bytes) {
  return [sizeText(bytes), element("small", { textContent: `${counted(bytes)} bytes` })];
}

function sentence(answer, question) {
  const { name } = question.card;
  if (answer.fits) return `${name}, with ${sizeText(answer.spare)} to spare`;
  if (answer.needed === null) return name;
  const short = sizeText(Math.max(-answer.spare, 0));
  return `${sizeText(answer.needed)} are needed, ${short} more than ${name} has`;
}

// The failed request, and a note that the cache was emptied for a request, which costs time.
function retriesText({ retries, tried }) {
  const often = { 0: "never", 1: "once" }[retries] ?? `${counted(retries)} times`;
  return tried === null ? often : `${often}; then ${sizeText(tried)} failed`;
}

function showAnswer(answer, question) {
  document.body.dataset.answer = answer.fits ? "yes" : "no";
  for (const name of ["refusal", "programs", "nearby"]) field(name).hidden = true;
  put("verdict", answer.fits ? "It fits" : "It does not fit");
  put("sentence", sentence(answer, question));
  showBar(answer);
  put("reserved", ...exactly(answer.reserved));
  put("allocated", ...exactly(answer.allocated));
  put("spare-name", answer.spare >= 0 ? "To spare" : "Missing");
  put("spare", ...exactly(Math.abs(answer.spare)));
  const [low, high] = question.card.process, peak = answer.needed ?? answer.reserved;
  put("process", `${sizeText(peak + low)} to ${sizeText(peak + high)}`);
  put("retries", retriesText(answer));
  put("largest", "…");
  field("take-largest").hidden = true;
  showPurposes(answer);
  put("notes", ...notesOf(question).map((note) => element("li", { textContent: note })));
  showCommand(question);
}

// Notes about what is not known of a question, as the command prints them.
function notesOf({ card, dtype, attention, checkpointing, model }) {
  if (model.sees) return [about.notes.convolutions];
  const found = model.isEager && attention === "eager" ? [about.notes.eager] : [];
  const hasCudnn = about.cudnnAttention.includes(card.capability[0]);
  if (hasCudnn && attention === "sdpa" && dtype !== "fp32") found.push(about.notes.cudnn);
  if (checkpointing && attention === "sdpa") found.push(about.notes.mask);
  if (model.keys.experts) found.push(about.notes.experts);
  return found;
}

// Parts of reserved memory at the peak, largest first, and the bytes that no block uses.
function partsOf(answer) {
  const parts = answer.held.map((bytes, kind) => ({ bytes, kind, name: about.purposes[kind] }));
  const held = parts.filter((part) => part.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  return [...held, { bytes: answer.reserved - answer.allocated, kind: IDLE, name: "reserved and not allocated" }];
}

function colour(mark, kind) {
  if (typeof kind === "string") mark.className = kind;
  else mark.style.background = `var(--category-${kind})`;
  return mark;
}

function showBar(answer) {
  const most = Math.max(answer.room, answer.needed ?? answer.reserved);
  const parts = partsOf(answer);
  if (!answer.fits && answer.needed > answer.reserved) {
    parts.push({ bytes: answer.needed - answer.reserved, kind: MISSING, name: "needed besides" });
  }
  put("held", ...parts.map(({ bytes, kind, name }) => {
    const part = colour(element("i", { title: `${name}: ${sizeText(bytes)}` }), kind);
    part.style.width = `${(100 * bytes) / most}%`;
    return part;
  }));
  field("edge").style.left = `${(100 * answer.room) / most}%`;
  const used = answer.fits ? `${sizeText(answer.reserved)} reserved`
    : `ran out of memory with at most ${sizeText(answer.reserved)} reserved`;
  put("scale-used", used);
  put("scale-room", `the card has ${sizeText(answer.room)} for PyTorch`);
  field("bar").setAttribute("aria-label", `${used}; the card has ${sizeText(answer.room)}`);
}

function showPurposes(answer) {
  const rows = partsOf(answer).map(({ bytes, kind, name }) => {
    const mark = colour(element("i"), kind);
    const share = `${Math.round((100 * bytes) / Math.max(answer.reserved, 1))} %`;
    return element("tr", {}, element("th", { scope: "row" }, mark, name),
      element("td", { textContent: sizeText(bytes) }), element("td", { textContent: share }));
  });
  document.querySelector("#purposes tbody").replaceChildren(...rows);
}

// The command for the same question, if it is about a preset and a named card.
function showCommand({ model, card, ...question }) {
  field("line").hidden = !model.isPreset;
  const on = card.short ? `--gpu "${card.short}"` : `--device-memory ${card.memory}`;
  const { work, batch, seq, prompt, decode, requests, dtype, optimizer, attention } = question;
  const parts = [`allocsim fit ${model.name} ${on}`];
  if (work === "serve") {
    parts.push(`--serve --batch ${batch} --prompt ${prompt} --decode ${decode} --requests ${requests} --dtype ${dtype}`);
  } else {
    parts.push(`--batch ${batch}`, ...(model.sees ? [] : [`--seq ${seq}`]), `--dtype ${dtype} --optimizer ${optimizer}`);
  }
  if (attention !== "sdpa") parts.push(`--attention ${attention}`);
  if (question.checkpointing) parts.push("--checkpointing");
  if (question.lora) parts.push(`--lora ${question.lora}`);
  put("command", [...parts, "--engine laws"].join(" "));
}

function showLargest({ batch, more }, question) {
  const words = batch ? counted(batch) : "not even 1";
  const why = more ? element("small", { textContent: `beyond: ${more}` }) : "";
  put("largest", words, why);
  const button = field("take-largest");
  button.hidden = !batch || batch === question.batch;
  button.dataset.batch = batch;
}

// There is no law: the reason, and the programs or sizes that have one.
function showRefusal(words, question) {
  document.body.dataset.answer = "none";
  put("verdict", "No answer");
  put("sentence", "");
  put("refusal", words[0].toUpperCase() + words.slice(1) + ".");
  field("refusal").hidden = false;
  showNearby(question);
  const family = lawsOf(question.model).join("_"), start = `${family}_`;
  const names = Object.keys(about.programs[family] ?? {});
  const buttons = names.map((name) => programButton(name.slice(start.length))).filter(Boolean);
  field("programs").hidden = !buttons.length || names.includes(lawsName(question));
  put("programs", element("p", { textContent: "Programs of this model with a law:" }), ...buttons);
}

// Buttons for nearby batches and lengths whose path through the kernels was recorded.
function showNearby(question) {
  const tokens = question.work === "serve" ? "prompt" : "seq";
  const buttons = nearby(question, tokens).map(([batch, length]) => {
    const words = question.model.sees ? `batch ${batch}` : `${batch} x ${counted(length)} tokens`;
    const button = element("button", { type: "button", textContent: words });
    button.addEventListener("click", () => {
      field("batch").value = batch;
      field(tokens).value = length;
      slideTo();
      ask();
    });
    return button;
  });
  field("nearby").hidden = !buttons.length;
  put("nearby", element("p", { textContent: "Nearby sizes with a law:" }), ...buttons);
}

// tokens: the field with the number of tokens.
function nearby(question, tokens) {
  const family = lawsOf(question.model).join("_"), parts = about.programs[family]?.[lawsName(question)];
  if (!parts) return [];
  const numbers = Object.assign({}, ...parts.map((part) => about.families[family].parts[part]));
  const { batch, [tokens]: asked } = question;
  const edges = [SORTED_ABOVE, IN_TWO_PASSES_ABOVE].map((most) => Math.floor(most / batch / 8) * 8);
  const others = [asked - 1, asked + 1, Math.ceil(asked / 8) * 8, ...edges];
  const lengths = [asked, ...(question.model.sees ? [] : others)];
  const near = [batch, batch - 1, batch + 1, 1].flatMap((some) => lengths.map((length) => [some, length]));
  const isKnown = ([some, length]) => {
    try {
      const other = { ...question, batch: some, [tokens]: length };
      refuseImpossible(other);
      return stretchesOf(other, sizesOf(question.model)).every(({ name }) => numbers[name] !== undefined);
    } catch (error) { // sizes that no model has
      if (error instanceof Refused) return false;
      throw error;
    }
  };
  return near.filter(isKnown).slice(0, OFFERED);
}

// A button that selects a program by its name; none for a program that the fields cannot express.
function programButton(name) {
  const [precision, doing, ...more] = name.split("_"), isServing = doing === "serve";
  const dtype = precision === "16-bit" ? "bf16" : precision;
  const isSaid = about.dtypes.includes(dtype) && (isServing || about.optimizers.includes(doing))
    && more.every((word) => ["checkpointing", "lora", "eager"].includes(word));
  if (!isSaid) return null;
  const button = element("button", { type: "button", textContent: [dtype, doing, ...more].join(" ") });
  button.addEventListener("click", () => {
    field("work").value = isServing ? "serve" : "train";
    field("dtype").value = dtype;
    if (!isServing) field("optimizer").value = doing;
    field("attention").value = more.includes("eager") ? "eager" : "sdpa";
    field("checkpointing").checked = more.includes("checkpointing");
    field("lora").value = more.includes("lora") ? Number(field("lora").value) || 8 : 0;
    slideTo();
    ask();
  });
  return button;
}
