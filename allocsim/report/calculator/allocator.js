// PyTorch's caching allocator in its default configuration, on one stream (docs/concepts/semantics.md 1, 2).
// Rule: requests, frees and empty_cache give the same blocks as allocsim/core.

const QUANTUM = 512;
const SMALL_SIZE = 2 ** 20; // largest rounded size in the small pool
const SMALL_SEGMENT = 2 * 2 ** 20;
const LARGE_SEGMENT = 20 * 2 ** 20;
const OWN_SEGMENT_FROM = 10 * 2 ** 20;
const PAGE = 2 * 2 ** 20;

class OutOfMemory extends Error {
  constructor(requested, tried) {
    super("out of memory");
    Object.assign(this, { requested, tried });
  }
}

function roundedUp(size, unit) {
  return Math.ceil(size / unit) * unit; // by a power of two, or of sizes far below 2**53
}

function segmentSize(rounded) {
  if (rounded <= SMALL_SIZE) return SMALL_SEGMENT;
  return rounded < OWN_SEGMENT_FROM ? LARGE_SEGMENT : roundedUp(rounded, PAGE);
}

// Free blocks by size, then address. The driver never reuses addresses, so older segments come first.
class Pool {
  constructor(leastRest) {
    this.leastRest = leastRest; // smallest remainder that a split may leave
    this.free = [];
  }

  place(size, address) {
    let low = 0, high = this.free.length;
    while (low < high) {
      const middle = (low + high) >> 1, block = this.free[middle];
      if (block.size < size || (block.size === size && block.address < address)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  insert(block) {
    block.isFree = true;
    this.free.splice(this.place(block.size, block.address), 0, block);
  }

  remove(block) {
    block.isFree = false;
    this.free.splice(this.place(block.size, block.address), 1);
  }

  // Remove and return the smallest free block that holds `size`; undefined if there is none.
  take(size) {
    const [block] = this.free.splice(this.place(size, 0), 1);
    if (block) block.isFree = false;
    return block;
  }
}

// room: bytes that the driver has for the allocator. Sizes are in bytes.
class CachingAllocator {
  constructor(room) {
    this.room = room;
    this.small = new Pool(QUANTUM);
    this.large = new Pool(SMALL_SIZE + 1);
    this.allocated = this.reserved = this.retries = 0;
    this.nextAddress = 0;
  }

  malloc(requested) {
    const rounded = Math.max(roundedUp(requested, QUANTUM), QUANTUM);
    const pool = rounded <= SMALL_SIZE ? this.small : this.large;
    const block = pool.take(rounded) ?? this.newSegment(pool, rounded) ?? this.retried(pool, rounded);
    if (!block) throw new OutOfMemory(requested, segmentSize(rounded));
    const rest = block.size - rounded;
    if (rest >= pool.leastRest) {
      const tail = { address: block.address + rounded, size: rest, pool, previous: block, next: block.next };
      if (block.next) block.next.previous = tail;
      block.next = tail;
      block.size = rounded;
      pool.insert(tail);
    }
    this.allocated += block.size;
    return block;
  }

  newSegment(pool, rounded) {
    const size = segmentSize(rounded);
    if (size > this.room - this.reserved) return null;
    const address = this.nextAddress;
    this.nextAddress += size;
    this.reserved += size;
    return { address, size, pool, isFree: false, previous: null, next: null };
  }

  // Before a request fails, cached segments are released to the driver once.
  retried(pool, rounded) {
    this.emptyCache();
    this.retries++;
    return this.newSegment(pool, rounded);
  }

  emptyCache() {
    for (const pool of [this.large, this.small]) {
      const isWhole = (block) => !block.previous && !block.next;
      for (const block of pool.free) if (isWhole(block)) this.reserved -= block.size;
      pool.free = pool.free.filter((block) => !isWhole(block));
    }
  }

  free(block) {
    const { pool, previous, next } = block;
    this.allocated -= block.size;
    if (previous?.isFree) {
      pool.remove(previous);
      block.address = previous.address;
      block.size += previous.size;
      block.previous = previous.previous;
      if (block.previous) block.previous.next = block;
    }
    if (next?.isFree) {
      pool.remove(next);
      block.size += next.size;
      block.next = next.next;
      if (block.next) block.next.previous = block;
    }
    pool.insert(block);
  }
}
