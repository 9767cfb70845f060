// A law at given sizes: its rows in order, and the bytes of each request (docs/reference/laws.md).
// Rule: only sizes and the number of layers change; anything that a law does not define is refused.

const REQUEST = 0, FREE = 1, EMPTY_CACHE = 2;
const MOST_ROWS = 2 ** 23;

class Refused extends Error {}

// Return a law by its number from the packed columns of its family, which hold all laws.
function lawOf(about, columns, number) {
  const { layers, period, spans: [rows, parts, formulas] } = about.laws[number];
  const column = (name, [start, stop]) => columns[name].subarray(start, stop);
  return {
    layers, period,
    kind: column("kind", rows), group: column("group", rows), number: column("number", rows), purpose: column("purpose", rows),
    byCopy: column("by_copy", rows), byCopies: column("by_copies", rows),
    parts: pairsOf(column("parts", parts)), formulas: formulasOf(column("formulas", formulas), about.variables),
  };
}

function pairsOf(flat) {
  return Array.from({ length: flat.length / 2 }, (_, i) => [flat[2 * i], flat[2 * i + 1]]);
}

// Each formula is numerator, denominator, number of variables, and their numbers in `names`.
function formulasOf(flat, names) {
  const found = [];
  for (let at = 0; at < flat.length; at += 3 + flat[at + 2]) {
    const numbers = flat.subarray(at + 3, at + 3 + flat[at + 2]);
    found.push({ numerator: flat[at], denominator: flat[at + 1], variables: Array.from(numbers, (n) => names[n]) });
  }
  return found;
}

// Bytes, rounded up. BigInt, because an intermediate product may exceed 2**53.
function bytesAt(formula, variables) {
  let product = BigInt(formula.numerator);
  for (const name of formula.variables) {
    if (!VARIABLES.includes(name)) throw new Refused(`this page does not know the variable ${name}: write the page again`);
    product *= BigInt(variables[name]);
  }
  const denominator = BigInt(formula.denominator);
  return Number((product + denominator - 1n) / denominator);
}

// Number of repetitions of each part of a law in a program with `layers` layers.
function copiesOf(law, layers) {
  const least = law.layers - law.period, copies = floorDiv(layers - least, law.period);
  if (layers < least) throw new Refused(`${layers} layers: no law for fewer than ${least}`);
  if ((layers - least) % law.period) throw new Refused(`${layers} layers: the law is for a multiple of ${law.period}`);
  return copies;
}

function rowsOf(law, copies) {
  const more = law.parts.reduce((sum, [start, stop]) => sum + stop - start, 0);
  return law.kind.length + more * (copies - 1);
}

function refuseTooLong(rows) {
  if (rows <= MOST_ROWS) return;
  throw new Refused(`${counted(rows)} steps are more than can be replayed; expected ${counted(MOST_ROWS)} or fewer`);
}

// Rows of a law with its parts repeated, and the growth of each row.
function unrolled(law, copies) {
  const length = rowsOf(law, copies);
  const row = new Int32Array(length), grown = new Float64Array(length);
  let at = 0, last = 0;
  const add = (each, copy) => {
    row[at] = each;
    grown[at++] = law.byCopies[each] * (copies - 1) + law.byCopy[each] * copy;
  };
  for (const [start, stop] of law.parts) {
    for (let each = last; each < start; each++) add(each, 0);
    for (let copy = 0; copy < copies; copy++) for (let each = start; each < stop; each++) add(each, copy);
    last = stop;
  }
  for (let each = last; each < law.kind.length; each++) add(each, 0);
  return { row, grown };
}

// The program that consists of consecutive laws; it depends on no size, so it serves every batch.
// lawNamed: law by name. The peaks are reset after the first, which makes the model.
function programOf(names, lawNamed, layers) {
  const laws = new Map(names.map((name) => [name, lawNamed(name)]));
  const copies = (name) => copiesOf(laws.get(name), layers);
  const length = names.reduce((sum, name) => sum + rowsOf(laws.get(name), copies(name)), 0);
  refuseTooLong(length);
  const known = new Map([...laws].map(([name, law]) => [name, unrolled(law, copies(name))]));
  const program = { row: new Int32Array(length), grown: new Float64Array(length), stretches: [] };
  let start = 0;
  for (const name of names) {
    const { row, grown } = known.get(name), law = laws.get(name);
    program.row.set(row, start);
    program.grown.set(grown, start);
    program.stretches.push({ law, start, stop: start + row.length });
    start += row.length;
  }
  program.reset = program.stretches[0].stop;
  program.block = blocksOf(program, layers);
  return program;
}

// The number of the block that each row requests or frees, in order of requests.
function blocksOf({ row: rows, grown, stretches }, layers) {
  const block = new Int32Array(rows.length), alive = new Map();
  let count = 0;
  for (const { law, start, stop } of stretches) {
    for (let i = start; i < stop; i++) {
      const row = rows[i], kind = law.kind[row];
      if (kind === EMPTY_CACHE) continue;
      let like = alive.get(law.group[row]);
      if (!like) alive.set(law.group[row], like = []);
      if (kind === REQUEST) {
        block[i] = count;
        like.push(count++);
        continue;
      }
      const at = like.length - 1 - (law.number[row] + grown[i]);
      if (!(at >= 0 && at < like.length)) throw new Refused(`${layers} layers: the law frees a block that does not exist`);
      block[i] = like[at];
      like.splice(at, 1);
    }
  }
  return block;
}

// A program run in an allocator with limited room, and its peaks since the reset.
class Replay {
  constructor(room, nPurposes) {
    this.allocator = new CachingAllocator(room);
    this.blocks = [];
    this.held = new Array(nPurposes).fill(0);
    this.tried = null; // bytes of the driver call that failed
    this.reset();
  }

  reset() {
    this.reserved = 0;
    this.allocated = this.allocator.allocated;
    this.heldAtPeak = [...this.held];
  }

  request(number, size, purpose) {
    if (!(size >= 1)) throw new Refused(`a request of ${size} bytes: no law for these sizes`);
    try {
      const block = this.blocks[number] = this.allocator.malloc(size);
      this.held[block.purpose = purpose] += block.size;
    } catch (error) {
      if (!(error instanceof OutOfMemory)) throw error;
      this.tried = error.tried;
    }
  }

  free(number) {
    const block = this.blocks[number];
    this.held[block.purpose] -= block.size;
    this.allocator.free(block);
    this.blocks[number] = null;
  }

  measure() {
    const { reserved, allocated } = this.allocator;
    if (reserved > this.reserved) this.reserved = reserved;
    if (allocated > this.allocated) {
      this.allocated = allocated;
      this.heldAtPeak = [...this.held];
    }
  }
}

// variables: one object per stretch of the program. room: bytes.
function replayed(program, variables, room, nPurposes) {
  const replay = new Replay(room, nPurposes), { row: rows, grown, block, stretches } = program;
  stretches.forEach(({ law, start, stop }, stretch) => {
    const sizes = replay.tried === null ? law.formulas.map((formula) => bytesAt(formula, variables[stretch])) : [];
    for (let i = start; i < stop && replay.tried === null; i++) {
      const row = rows[i];
      if (i === program.reset) replay.reset();
      if (law.kind[row] === REQUEST) replay.request(block[i], sizes[law.number[row]] + grown[i], law.purpose[row]);
      else if (law.kind[row] === FREE) replay.free(block[i]);
      else replay.allocator.emptyCache();
      replay.measure();
    }
  });
  const { tried, reserved, allocated, heldAtPeak } = replay;
  return { isOutOfMemory: tried !== null, tried, reserved, allocated, held: heldAtPeak, retries: replay.allocator.retries };
}
