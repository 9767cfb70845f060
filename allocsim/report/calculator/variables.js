// Variables: the bytes of a request are a product of them, as in allocsim/fitting/laws/variables.py.
// Rule: VARIABLES lists every variable that is computed here; a law with another one is refused.

const SIZES = [
  "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary",
  "batch", "length", "lora", "positions", "experts", "chosen", "patch",
];
const COLUMNS = {
  hidden: [1, ["hidden"]],
  three_hidden: [3, ["hidden"]],
  intermediate: [1, ["intermediate"]],
  queries: [1, ["heads", "head_dim"]],
  keys: [1, ["kv_heads", "head_dim"]],
  vocabulary: [1, ["vocabulary"]],
  vocabulary_in_twos: [1, ["vocabulary"]],
  vocabulary_in_ones: [1, ["vocabulary"]],
};
const ROWS_OF_A_BLOCK = { vocabulary_in_twos: 8, vocabulary_in_ones: 16 }; // 4 for others
const BY_ROWS = { 4: "fours", 8: "twos", 16: "ones" }; // columns that a thread sums
// Rows and columns of the matrices that Adafactor sums, as in allocsim/fitting/laws/sums.py.
const MATRICES = {
  queries: [["heads", "head_dim"], ["hidden"]],
  keys: [["kv_heads", "head_dim"], ["hidden"]],
  attended: [["hidden"], ["heads", "head_dim"]],
  joined: [["hidden"], ["three", "hidden"]],
  gate: [["intermediate"], ["hidden"]],
  down: [["hidden"], ["intermediate"]],
  embedding: [["vocabulary"], ["hidden"]],
  places: [["positions"], ["hidden"]],
};
const OF_LEARNED_PLACES = ["joined", "places"];
const VARIABLES = [
  "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary",
  "batch", "length", "lora", "positions", "experts", "chosen", "patch", "queries_keys_values",
  "workspace", "length_and_one", "length_less_one", "choice_parts",
  "length_by_8", "length_by_16", "length_by_32", "length_by_128", "windowed",
  "splits", "gradient_workspace", "gradient_workspace_16_bit",
  "touched_rows", "partial_segments", "sort_storage", "scan_storage", "rows_scan_storage",
  "choices_sort_storage", "chosen_sort_storage", "experts_sort_storage",
  "patch_weights_checked", "patch_positions_checked", "types_segments", "types_sort_storage",
  "hidden_by_128", "three_hidden_by_128", "intermediate_by_128", "queries_by_128", "keys_by_128",
  "vocabulary_by_128", "vocabulary_in_twos_by_64", "vocabulary_in_ones_by_32",
  "hidden_partial_sums", "three_hidden_partial_sums", "intermediate_partial_sums",
  "queries_partial_sums", "keys_partial_sums", "vocabulary_partial_sums",
  "vocabulary_in_twos_partial_sums", "vocabulary_in_ones_partial_sums",
  "queries_column_storage", "keys_column_storage", "attended_column_storage", "joined_column_storage",
  "gate_column_storage", "down_column_storage", "embedding_column_storage", "places_column_storage",
  "queries_parts", "keys_parts", "attended_parts", "joined_parts",
  "gate_parts", "down_parts", "embedding_parts", "places_parts", "row_parts",
  "query_norm_sums", "key_norm_sums",
];
const AT_ONCE = 130560; // numbers that one block sums
const INDEXED = 2 ** 31 - 1; // bytes of a tensor that one kernel sums
const CHECKED = 8192; // numbers that one block checks
const STORED = 512; // bytes of a column's partial sum
const TYPES_OF_TOKENS = 2; // of BERT
const PIXELS = 224; // height and width of an image
const SORTED_ABOVE = 3072; // tokens
const SORTED_BY_ONE_BLOCK = 2304; // indices
const SORTED_BY_ITSELF = 4096; // choices of experts
const HEADS_SERVED = [64, 96, 128]; // head sizes
const HEADS_SERVED_EAGERLY = [...HEADS_SERVED, 192, 256];
const IN_TWO_PASSES_ABOVE = 1020;
const NORMED_IN_PARTS_ABOVE = 65536; // in models with LayerNorm
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

// card: capability [major, minor], multiprocessors, and threads of a multiprocessor.
// isStep: a serving step of one token; `length` is then the length of the cache.
function variablesOf(sizes, card, isStep = false) {
  const found = {};
  for (const name of SIZES) found[name] = sizes[name] ?? 0;
  const { length, head_dim: headDim } = found;
  const tokens = found.batch * length;
  found.workspace = card.capability[0] >= HOPPER ? WORKSPACE_SINCE_HOPPER : WORKSPACE;
  found.length_and_one = length + 1;
  found.length_less_one = length - 1;
  found.windowed = Math.min(length, sizes.window || length);
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
  found.patch_weights_checked = blocksChecking(patchWeights(found), card);
  found.patch_positions_checked = blocksChecking(patchPositions(found), card);
  found.types_segments = floorDiv(tokens, 10) + TYPES_OF_TOKENS;
  found.types_sort_storage = sortStorage(tokens, digitsOf(TYPES_OF_TOKENS));
  for (const [name, heads] of [["query", found.heads], ["key", found.kv_heads]]) {
    found[`${name}_norm_sums`] = sizes.head_norms ? partialSums(tokens * heads, headDim, card, 4) : 0;
  }
  for (const [name, [factor, width]] of Object.entries(COLUMNS)) {
    const columns = productOf(found, width, factor), rows = ROWS_OF_A_BLOCK[name] ?? 4;
    const wide = columnsOfABlock(rows);
    found[`${name}_by_${wide}`] = ceilDiv(columns, wide);
    found[`${name}_partial_sums`] = partialSums(tokens, columns, card, rows);
  }
  return Object.assign(found, factoredVariables(found, card));
}

function productOf(sizes, names, factor = 1) {
  return names.reduce((product, name) => product * sizes[name], factor);
}

// Number of blocks of `threads` threads that fill the card.
function blocksFilling(card, threads) {
  return card.multiprocessors * floorDiv(card.threads, threads);
}

// Number of blocks that select the likeliest token of a sequence.
function choiceParts({ vocabulary, batch }, card) {
  return blocksTaking(vocabulary, ceilDiv(blocksFilling(card, 512), batch));
}

// Blocks of 512 threads for a count of numbers: `blocks`, limited by the work and by the card.
function blocksTaking(numbers, blocks) {
  const values = ceilDiv(numbers, 512);
  return Math.max(Math.min(blocks, ceilDiv(values, 16)), ceilDiv(values, 256));
}

// Blocks that check the bounds of random numbers.
function blocksChecking(numbers, card) {
  return Math.min(ceilDiv(numbers, CHECKED), blocksFilling(card, 512));
}

function patchWeights({ hidden, patch }) {
  return 3 * hidden * patch ** 2;
}

function patchPositions({ hidden, length }) {
  return hidden * length;
}

function columnsOfABlock(rows) {
  return 512 / rows;
}

// How many times the blocks of the columns fill the card.
function filling(columns, card, rows) {
  return ceilDiv(blocksFilling(card, 32 * rows), Math.max(ceilDiv(columns, columnsOfABlock(rows)), 1));
}

// Number of partial sums of one column over a count of rows.
function partialSums(summed, columns, card, rows) {
  const enough = Math.min(ceilDiv(summed, 16 * rows), filling(columns, card, rows));
  return Math.max(enough, ceilDiv(summed, 256 * rows));
}

function matrixOf(name, sizes) {
  const known = { ...sizes, positions: sizes.positions ?? 0, three: 3 };
  return MATRICES[name].map((of) => productOf(known, of));
}

// Bytes that Adafactor's sums store; 0 if one pass is enough.
function factoredVariables(sizes, card) {
  const parts = (numbers) => (numbers <= AT_ONCE ? 0 : blocksTaking(numbers, blocksFilling(card, 512)));
  const found = { row_parts: parts(sizes.vocabulary) };
  for (const name of Object.keys(MATRICES)) {
    const [rows, columns] = matrixOf(name, sizes), isAtOnce = rows <= IN_TWO_PASSES_ABOVE || !columns;
    found[`${name}_column_storage`] = isAtOnce ? 0 : STORED * columns * partialSums(rows, columns, card, 4);
    found[`${name}_parts`] = parts(rows * columns);
  }
  return found;
}

// Matrices whose columns are summed in two passes, and their other properties; `factored` is the bytes of
// a number.
function factoredWay(sizes) {
  const names = Object.keys(MATRICES).filter((name) => sizes.positions || !OF_LEARNED_PLACES.includes(name));
  const shapes = names.map((name) => [name, ...matrixOf(name, sizes)]);
  const named = (what, isSo) => [what, ...shapes.filter(isSo).map(([name]) => name)].join("-");
  const small = named("small", ([, rows, columns]) => rows * columns <= AT_ONCE);
  const way = [named("tall", ([, rows]) => rows > IN_TWO_PASSES_ABOVE), ...(small === "small" ? [] : [small])];
  if (sizes.vocabulary > AT_ONCE) way.push("rows");
  if (shapes.some(([, , columns]) => columns % 4)) way.push("odd");
  if (Math.max(...shapes.map(([, rows, columns]) => rows * columns)) * sizes.factored > INDEXED) way.push("parts");
  return way.join(".");
}

// Bytes of one head of a sequence in the backward pass of memory-efficient attention.
function gradientWorkspace(length, headDim, isFp32) {
  const block = headDim <= 64 ? 64 : 128;
  const width = ceilDiv(headDim, block) * block;
  return ceilDiv(length, block) * (4 * block * width + (isFp32 ? block / 4 : 16));
}

// Bytes for sorting the indices in the gradient of an embedding.
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

// Temporary storage of a radix sort of 8-bit digits.
function sortStorage(count, digits) {
  if (count <= SORTED_BY_ONE_BLOCK) return 1;
  const arrays = digits > 1 ? 2 * ceilDiv(count, 32) : 0;
  return 256 * (arrays + 2 + 8 * digits + 4 * ceilDiv(count, 3840)) - 1;
}

// The path through the kernels: batch, tokens, heads, attention splits or mask, window, and properties of
// single families.
function regimeOf(sizes, card, maskUnit) {
  const tokens = sizes.batch * sizes.length;
  let many = tokens > IN_TWO_PASSES_ABOVE ? "two" : "few";
  if (tokens > SORTED_ABOVE) many = "sorted";
  if (sizes.patch && sizes.batch > IN_TWO_PASSES_ABOVE) many = "crowd";
  if ((sizes.positions || sizes.patch) && tokens > NORMED_IN_PARTS_ABOVE) many = "crowd";
  if (sizes.positions && sizes.length > SORTED_ABOVE) many = "long";
  let attention;
  if (maskUnit) attention = sizes.length % maskUnit ? "padded" : "masked";
  else attention = attentionSplits(sizes, card.multiprocessors) > 1 ? "split" : "whole";
  const parts = [batchWay(sizes), many, headsWay(sizes), attention];
  if (sizes.window && maskUnit !== 1) parts.push("window");
  parts.push(...biasesWay(sizes, tokens, card), ...expertsWay(sizes, tokens));
  if (sizes.head_norms && tokens * sizes.kv_heads <= IN_TWO_PASSES_ABOVE) parts.push("brief");
  parts.push(...patchesWay(sizes, tokens));
  return parts.join(".");
}

// How the bias columns of a vocabulary are summed: four at a time, two, or one.
function biasesWay({ output_bias: hasBias, vocabulary, logit_bytes: bytes = 2 }, tokens, card) {
  if (!hasBias) return [];
  const rows = vocabulary % 4 === 0 ? 4 : vocabulary % 2 === 0 ? 8 : 16;
  const isTakenApart = tokens > 255 * rows && filling(vocabulary, card, rows) > 1;
  const way = isTakenApart ? [BY_ROWS[rows]] : [];
  return bytes * tokens * vocabulary > INDEXED ? [...way, "parts"] : way;
}

function patchesWay(sizes, tokens) {
  if (!sizes.patch) return [];
  const widest = Math.max(sizes.intermediate ?? 0, 3 * sizes.hidden);
  const drawn = sizes.vocabulary ? patchPositions(sizes) : patchWeights(sizes);
  return [...(drawn <= AT_ONCE ? ["narrow"] : []), ...(4 * tokens * widest > INDEXED ? ["parts"] : [])];
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

// The path of a prompt, or of a step of one token, in serving. isFused: attention is FlashAttention;
// isEager: attention has no fused kernel.
function servedRegimeOf(sizes, card, isFused, isStep, isEager = false) {
  if (!isStep && sizes.length === 1) return "one token";
  if (!(isEager ? HEADS_SERVED_EAGERLY : HEADS_SERVED).includes(sizes.head_dim)) return `heads of ${sizes.head_dim}`;
  const window = servedWindow(sizes, isEager);
  const isSplit = isFused && window !== "filled" && attentionSplits(sizes, card.multiprocessors, isStep) > 1;
  const choice = sizes.vocabulary > AT_ONCE ? "parts" : "at-once";
  const tokens = sizes.batch * (isStep ? 1 : sizes.length);
  const way = [batchWay(sizes), headsWay(sizes), isSplit ? "split" : "whole", choice];
  return [...way, ...(window ? [window] : []), ...expertsWay(sizes, tokens)].join(".");
}

// "window" for a model with a sliding window, "filled" if the tokens reach it. Eager attention always has a mask.
function servedWindow({ window, length }, isEager) {
  if (isEager || !window) return "";
  return length >= window ? "filled" : "window";
}

// Number of parts into which FlashAttention-2 splits the keys, so that a small job fills the card.
// isStep: one query per head; heads that share their keys are then one sequence.
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
