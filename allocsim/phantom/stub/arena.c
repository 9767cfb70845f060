/* Chunks, holes and gaps in the address space of one process; arena.h has the rules. */
#include "arena.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define CHUNK (32 * MIB)

struct span {
  uintptr_t start, end;
};
struct spans { /* disjoint, sorted by start */
  struct span *items;
  size_t n, room;
};
static struct spans chunks, holes, gaps;
static uintptr_t lowest; /* start of the lowest chunk */

/* Return the index of the first span that starts at or above `start`. */
static size_t index_of(const struct spans *spans, uintptr_t start) {
  size_t low = 0, high = spans->n;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (spans->items[middle].start < start)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static int has_room(struct spans *spans) {
  if (spans->n < spans->room) return 1;
  const size_t room = spans->room ? spans->room * 2 : 64;
  struct span *grown = realloc(spans->items, room * sizeof *grown);
  if (!grown) return 0;
  spans->items = grown;
  spans->room = room;
  return 1;
}

static void remove_at(struct spans *spans, size_t i) {
  memmove(spans->items + i, spans->items + i + 1, (--spans->n - i) * sizeof *spans->items);
}

/* Add a span unless it is empty; the caller has checked `has_room`. */
static void add(struct spans *spans, uintptr_t start, uintptr_t end) {
  if (start >= end) return;
  const size_t i = index_of(spans, start);
  memmove(spans->items + i + 1, spans->items + i, (spans->n++ - i) * sizeof *spans->items);
  spans->items[i] = (struct span){start, end};
}

/* Merge a span with the spans it touches, within `from` and `to`, and return the result. */
static struct span join(struct spans *spans, struct span span, uintptr_t from, uintptr_t to) {
  size_t i = index_of(spans, span.start);
  if (i < spans->n && spans->items[i].start == span.end && span.end < to) {
    span.end = spans->items[i].end;
    remove_at(spans, i);
  }
  if (i > 0 && spans->items[i - 1].end == span.start && spans->items[i - 1].start >= from) {
    span.start = spans->items[i - 1].start;
    remove_at(spans, i - 1);
  }
  add(spans, span.start, span.end);
  return span;
}

/* Take a chunk of `size` bytes from the highest gap that is large enough, else below all chunks. */
static uintptr_t new_chunk(size_t size) {
  for (size_t i = gaps.n; i-- > 0;) {
    struct span *gap = gaps.items + i;
    if (gap->end - gap->start < size) continue;
    const uintptr_t start = gap->end -= size;
    if (gap->start == gap->end) remove_at(&gaps, i);
    return start;
  }
  return lowest < size ? 0 : (lowest -= size);
}

/* Chunk of the context before its first kernels are loaded, and the bytes these kernels take. */
static struct span temporary;
static size_t of_kernels;

void arena_reset(uintptr_t top) {
  chunks.n = holes.n = gaps.n = 0;
  temporary = (struct span){0, 0};
  of_kernels = 0;
  lowest = top / CHUNK * CHUNK;
}

uintptr_t arena_place(size_t size) {
  for (size_t i = 0; i < holes.n; i++) {
    struct span *hole = holes.items + i;
    if (hole->end - hole->start < size) continue;
    const uintptr_t start = hole->start;
    hole->start += size;
    if (hole->start == hole->end) remove_at(&holes, i);
    return start;
  }
  if (!has_room(&chunks) || !has_room(&holes)) return 0;
  const size_t wide = (size + CHUNK - 1) / CHUNK * CHUNK;
  const uintptr_t start = new_chunk(wide);
  if (!start) return 0;
  add(&chunks, start, start + wide);
  add(&holes, start + size, start + wide);
  return start;
}

void arena_release(uintptr_t start, size_t size) {
  if (!has_room(&holes) || !has_room(&gaps)) return; /* the addresses are lost, as under `bump` */
  const size_t i = index_of(&chunks, start + 1) - 1;
  const struct span chunk = chunks.items[i];
  /* Within the chunk only, because a hole never spans two chunks. */
  const struct span hole =
      join(&holes, (struct span){start, start + size}, chunk.start, chunk.end);
  if (hole.start != chunk.start || hole.end != chunk.end) return;
  remove_at(&holes, index_of(&holes, hole.start));
  remove_at(&chunks, i);
  const struct span gap = join(&gaps, chunk, 0, UINTPTR_MAX);
  /* Below the lowest chunk there is no gap: the next chunk is placed there in any case. */
  if (gap.start != lowest) return;
  lowest = gap.end;
  remove_at(&gaps, index_of(&gaps, gap.start));
}

void arena_add_context(const char *text) {
  char *after;
  for (size_t size; (size = strtoull(text, &after, 10) * MIB) && *after == ':'; text = after) {
    const size_t used = strtoull(after + 1, &after, 10) * MIB;
    if (size % CHUNK || used > size || lowest < size) return;
    if (!has_room(&chunks) || !has_room(&holes)) return;
    lowest -= size;
    add(&chunks, lowest, lowest + size);
    add(&holes, lowest + used, lowest + size);
    temporary = (struct span){lowest, lowest + used};
  }
  if (temporary.end) of_kernels = strtoull(text, NULL, 10) * MIB;
}

void arena_load_kernels(void) {
  if (!of_kernels) return;
  arena_place(of_kernels);
  of_kernels = 0;
  arena_release(temporary.start, temporary.end - temporary.start);
}
