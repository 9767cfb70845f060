// What the bytes of a request are a product of, as allocsim/laws/variables.py has it.
// Rule: every variable that is worked out here stands in VARIABLES; a law that names another is refused.

const SIZES = [
  "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary",
  "batch", "length", "lora", "positions", "experts", "chosen",
];
const COLUMNS = {
  hidden: [1, ["hidden"]],
  three_hidden: [3, ["hidden"]],
  intermediate: [1, ["intermediate"]],
  queries: [1, ["heads", "head_dim"]],
  keys: [1, ["kv_heads", "head_dim"]],
};
const VARIABLES = [
  "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary",
  "batch", "length", "lora", "positions", "experts", "chosen", "queries_keys_values",
  "workspace", "length_and_one", "choice_parts", "length_by_8", "length_by_16", "length_by_32", "length_by_128",
  "splits", "gradient_workspace", "gradient_workspace_16_bit",
  "touched_rows", "partial_segments", "sort_storage", "scan_storage", "rows_scan_storage",
  "choices_sort_storage", "chosen_sort_storage", "experts_sort_storage",
  "hidden_by_128", "three_hidden_by_128", "intermediate_by_128", "queries_by_128", "keys_by_128",
  "hidden_partial_sums", "three_hidden_partial_sums", "intermediate_partial_sums",
  "queries_partial_sums", "keys_partial_sums",
];
const SORTED_ABOVE = 3072; // tokens
const SORTED_BY_ONE_BLOCK = 2304; // indices
const SORTED_BY_ITSELF = 4096; // choices of experts
const CHOSEN_IN_PARTS_FROM = 256; // values for each of 512 threads, where a token is chosen
const HEADS_SERVED = [64, 96, 128]; // their sizes
const IN_TWO_PASSES_ABOVE = 1020;
const NORMED_IN_PARTS_ABOVE = 65536; // where there are positions, and so LayerNorms
const WORKSPACE = 8519680;
const WORKSPACE_SINCE_HOPPER = 32 * 2 ** 20;
const HOPPER = 9;

// The quotient rounded up, exact for whole numbers up to 2**53.
function ceilDiv(a, b) {
  const rest = a % b;
  return (a - rest) / b + (rest > 0 ? 1 : 0);
}

function floorDiv(a, b) {
  return (a - (a % b)) / b;
}

// card: capability [major, minor], multiprocessors, threads that one of them holds.
// isStep: of serving, a step of one token; `length` is what its cache holds then.
function variablesOf(sizes, card, isStep = false) {
  const found = {};
  for (const name of SIZES) found[name] = sizes[name] ?? 0;
  const { length, head_dim: headDim } = found;
  const tokens = found.batch * length;
  found.workspace = card.capability[0] >= HOPPER ? WORKSPACE_SINCE_HOPPER : WORKSPACE;
  found.length_and_one = length + 1;
  for (const unit of [8, 16, 32, 128]) found[`length_by_${unit}`] = ceilDiv(length, unit) * unit;
  found.splits = attentionSplits(found, card.multiprocessors, isStep);
  found.choice_parts = choiceParts(found, card);
  found.gradient_workspace = gradientWorkspace(length, headDim, true);
  found.gradient_workspace_16_bit = gradientWorkspace(length, headDim, false);
  found.queries_keys_values = (found.heads + 2 * found.kv_heads) * headDim;
  Object.assign(found, sortedVariables(tokens, found.vocabulary));
  const routed = isStep ? found.batch : tokens, choices = routed * found.chosen;
  found.choices_sort_storage = sortStorage(choices, digitsOf(routed));
  found.chosen_sort_storage = sortStorage(choices, digitsOf(choices));
  found.experts_sort_storage = sortStorage(choices, 8);
  for (const [name, [factor, width]] of Object.entries(COLUMNS)) {
    const columns = width.reduce((product, size) => product * found[size], factor);
    found[`${name}_by_128`] = ceilDiv(columns, 128);
    found[`${name}_partial_sums`] = partialSums(tokens, columns, card);
  }
  return found;
}

// Into how many blocks the choice of the likeliest token of a sequence is taken apart.
function choiceParts({ vocabulary, batch }, card) {
  const values = ceilDiv(vocabulary, 512), blocks = card.multiprocessors * floorDiv(card.threads, 512);
  return Math.max(Math.min(ceilDiv(blocks, batch), ceilDiv(values, 16)), ceilDiv(values, 256));
}

// Into how many sums a sum over tokens is taken apart first.
function partialSums(tokens, columns, card) {
  const blocks = card.multiprocessors * floorDiv(card.threads, 128);
  const fills = ceilDiv(blocks, Math.max(ceilDiv(columns, 128), 1));
  return Math.max(Math.min(ceilDiv(tokens, 64), fills), ceilDiv(tokens, 1024));
}

// Of a head of a sequence in the backward of memory-efficient attention.
function gradientWorkspace(length, headDim, isFp32) {
  const block = headDim <= 64 ? 64 : 128;
  const width = ceilDiv(headDim, block) * block;
  return ceilDiv(length, block) * (4 * block * width + (isFp32 ? block / 4 : 16));
}

// What the gradient of an embedding takes to sort its indices.
function sortedVariables(tokens, vocabulary) {
  const rows = Math.min(tokens, vocabulary);
  return {
    touched_rows: rows,
    partial_segments: floorDiv(tokens, 10) + rows,
    sort_storage: sortStorage(tokens, digitsOf(vocabulary)),
    scan_storage: 256 * (4 + ceilDiv(tokens, 21504)) - 1,
    rows_scan_storage: 256 * (4 + ceilDiv(rows, 14336)) - 1,
  };
}

// Digits of 8 bits of an index below `values`.
function digitsOf(values) {
  return ceilDiv(Math.max(values - 1, 1).toString(2).length, 8);
}

// The temporary storage of a radix sort of so many indices, of so many digits of 8 bits.
function sortStorage(count, digits) {
  if (count <= SORTED_BY_ONE_BLOCK) return 1;
  const arrays = digits > 1 ? 2 * ceilDiv(count, 32) : 0;
  return 256 * (arrays + 2 + 8 * digits + 4 * ceilDiv(count, 3840)) - 1;
}

// The way through the kernels: batch, tokens, heads, splits of attention or its mask, a window, experts.
function regimeOf(sizes, card, maskUnit) {
  const tokens = sizes.batch * sizes.length;
  let many = tokens > IN_TWO_PASSES_ABOVE ? "two" : "few";
  if (tokens > SORTED_ABOVE) many = "sorted";
  if (sizes.positions && tokens > NORMED_IN_PARTS_ABOVE) many = "crowd";
  if (sizes.positions && sizes.length > SORTED_ABOVE) many = "long";
  let attention;
  if (maskUnit) attention = sizes.length % maskUnit ? "padded" : "masked";
  else attention = attentionSplits(sizes, card.multiprocessors) > 1 ? "split" : "whole";
  const parts = [batchWay(sizes), many, headsWay(sizes), attention];
  if (sizes.window) parts.push("window");
  return [...parts, ...expertsWay(sizes, tokens)].join(".");
}

function batchWay({ batch }) {
  return batch === 1 ? "single" : "several";
}

function headsWay({ heads, kv_heads: kvHeads = heads }) {
  return kvHeads === 1 ? "one" : kvHeads === heads ? "own" : "shared";
}

function expertsWay({ chosen }, tokens) {
  return [...(chosen === 1 ? ["one"] : []), ...(chosen && tokens * chosen > SORTED_BY_ITSELF ? ["many"] : [])];
}

// The way of a prompt, or of a step of one token, in serving.  isFused: whether attention is FlashAttention's.
function servedRegimeOf(sizes, card, isFused, isStep) {
  if (!isStep && sizes.length === 1) return "one token";
  if (!HEADS_SERVED.includes(sizes.head_dim)) return `heads of ${sizes.head_dim}`;
  const isSplit = isFused && attentionSplits(sizes, card.multiprocessors, isStep) > 1;
  const choice = ceilDiv(sizes.vocabulary, 512) >= CHOSEN_IN_PARTS_FROM ? "parts" : "at-once";
  const tokens = sizes.batch * (isStep ? 1 : sizes.length);
  const way = [batchWay(sizes), headsWay(sizes), isSplit ? "split" : "whole", choice];
  return [...way, ...expertsWay(sizes, tokens)].join(".");
}

// Into how many parts FlashAttention-2 takes the keys, so that a small job fills the card.
// isStep: one query for each head; those of heads that share their keys are one sequence then.
function attentionSplits(sizes, multiprocessors, isStep = false) {
  const places = 2 * multiprocessors;
  const block = sizes.head_dim <= 64 ? 256 : sizes.head_dim <= 128 ? 128 : 64;
  const keyBlocks = ceilDiv(sizes.length, block);
  const sharing = isStep && sizes.kv_heads ? floorDiv(sizes.heads, sizes.kv_heads) : 1;
  const queries = isStep ? sharing : sizes.length;
  const jobs = sizes.batch * floorDiv(sizes.heads, sharing) * ceilDiv(queries, 64);
  if (jobs >= 0.8 * places) return 1;
  const filled = new Map();
  for (let splits = 1; splits <= Math.min(128, places, keyBlocks); splits++) {
    if (splits > 1 && ceilDiv(keyBlocks, splits) === ceilDiv(keyBlocks, splits - 1)) continue;
    const waves = (jobs * splits) / places;
    filled.set(splits, waves / ceilDiv(jobs * splits, places));
  }
  const best = Math.max(...filled.values());
  for (const [splits, share] of filled) if (share >= 0.85 * best) return splits;
  return 1;
}
