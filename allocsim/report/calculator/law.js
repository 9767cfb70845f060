// A law at the sizes asked for: its rows in order, and the bytes of each request (docs/laws.md).
// Rule: only sizes and the number of layers change; what a law does not say is refused.

const REQUEST = 0, FREE = 1, EMPTY_CACHE = 2;
const MOST_ROWS = 2 ** 23;

class Refused extends Error {}

// The law of one regime from the packed columns of its program.
function lawOf(about, columns, regime) {
  const { layers, reset } = about.regimes[regime];
  const column = (name) => columns[`${regime}/${name}`];
  return {
    layers, reset,
    kind: column("kind"), kin: column("kin"), number: column("number"), purpose: column("purpose"),
    byCopy: column("by_copy"), byCopies: column("by_copies"),
    parts: pairsOf(column("parts")), formulas: formulasOf(column("formulas"), about.variables),
  };
}

function pairsOf(flat) {
  return Array.from({ length: flat.length / 2 }, (_, i) => [flat[2 * i], flat[2 * i + 1]]);
}

// Each formula is numerator, denominator, how many variables, and their numbers in `names`.
function formulasOf(flat, names) {
  const found = [];
  for (let at = 0; at < flat.length; at += 3 + flat[at + 2]) {
    const numbers = flat.subarray(at + 3, at + 3 + flat[at + 2]);
    found.push({ numerator: flat[at], denominator: flat[at + 1], variables: Array.from(numbers, (n) => names[n]) });
  }
  return found;
}

// Bytes, rounded up.  Whole numbers of any size on the way: a product may pass 2**53.
function bytesAt(formula, variables) {
  let product = BigInt(formula.numerator);
  for (const name of formula.variables) {
    if (!VARIABLES.includes(name)) throw new Refused(`this page does not know the variable ${name}: write it anew`);
    product *= BigInt(variables[name]);
  }
  const denominator = BigInt(formula.denominator);
  return Number((product + denominator - 1n) / denominator);
}

// The rows of a program of so many layers; hangs on no size, so that it serves every batch.
function unrolled(law, layers) {
  const least = law.layers - 1, copies = layers - least;
  if (copies < 0) throw new Refused(`${layers} layers: no law for fewer than ${least}`);
  const n = law.kind.length;
  const more = law.parts.reduce((sum, [start, stop]) => sum + stop - start, 0);
  const length = n + more * (copies - 1);
  if (length > MOST_ROWS) {
    throw new Refused(`${counted(length)} steps are more than can be replayed; expected ${counted(MOST_ROWS)} or fewer`);
  }
  const rows = { row: new Int32Array(length), grown: new Float64Array(length), copies, length };
  let at = 0, last = 0;
  const add = (row, copy) => {
    rows.row[at] = row;
    rows.grown[at++] = law.byCopies[row] * (copies - 1) + law.byCopy[row] * copy;
  };
  for (const [start, stop] of law.parts) {
    for (let row = last; row < start; row++) add(row, 0);
    for (let copy = 0; copy < copies; copy++) for (let row = start; row < stop; row++) add(row, copy);
    last = stop;
  }
  for (let row = last; row < n; row++) add(row, 0);
  rows.block = blocksOf(law, rows, layers);
  rows.reset = rows.row.indexOf(law.reset);
  return rows;
}

// Of each row the number of the block that it requests or frees, by request.
function blocksOf(law, rows, layers) {
  const block = new Int32Array(rows.length), alive = new Map();
  let count = 0;
  for (let i = 0; i < rows.length; i++) {
    const row = rows.row[i], kind = law.kind[row];
    if (kind === EMPTY_CACHE) continue;
    let like = alive.get(law.kin[row]);
    if (!like) alive.set(law.kin[row], like = []);
    if (kind === REQUEST) {
      block[i] = count;
      like.push(count++);
      continue;
    }
    const at = like.length - 1 - (law.number[row] + rows.grown[i]);
    if (!(at >= 0 && at < like.length)) throw new Refused(`${layers} layers: no law says which block is freed`);
    block[i] = like[at];
    like.splice(at, 1);
  }
  return block;
}

// The rows asked of an allocator that has `room` bytes: peaks from the row on at which they are reset.
function replayed(law, rows, variables, room, nPurposes) {
  const sizes = law.formulas.map((formula) => bytesAt(formula, variables));
  const allocator = new CachingAllocator(room);
  const blocks = [], held = new Array(nPurposes).fill(0);
  let reserved = 0, allocated = 0, heldAtPeak = [...held], tried = null;
  for (let i = 0; i < rows.length; i++) {
    const row = rows.row[i], number = rows.block[i];
    if (i === rows.reset) {
      reserved = 0;
      allocated = allocator.allocated;
      heldAtPeak = [...held];
    }
    if (law.kind[row] === REQUEST) {
      const size = sizes[law.number[row]] + rows.grown[i];
      if (!(size >= 1)) throw new Refused(`a request of ${size} bytes: no law for these sizes`);
      try {
        const block = blocks[number] = allocator.malloc(size);
        held[block.purpose = law.purpose[row]] += block.size;
      } catch (error) {
        if (!(error instanceof OutOfMemory)) throw error;
        tried = error.tried;
      }
    } else if (law.kind[row] === FREE) {
      const block = blocks[number];
      held[block.purpose] -= block.size;
      allocator.free(block);
      blocks[number] = null;
    } else allocator.emptyCache();
    reserved = Math.max(reserved, allocator.reserved);
    if (allocator.allocated > allocated) {
      allocated = allocator.allocated;
      heldAtPeak = [...held];
    }
    if (tried !== null) break;
  }
  return { isOutOfMemory: tried !== null, tried, reserved, allocated, held: heldAtPeak, retries: allocator.retries };
}
