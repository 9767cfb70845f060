/* The books of the device that is not there; device.h states the rules. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

struct range {
  uintptr_t start;
  size_t size;    /* address space, whole pages */
  size_t counted; /* bytes held of the capacity; 0 for a bare reservation */
};

#define STREAM_SLOTS 65536 /* a power of two, far above the streams of any script */

static size_t capacity = (size_t)16 << 30;
static size_t used;
static enum device_policy policy = DEVICE_BUMP;
static uintptr_t base = (uintptr_t)1 << 44;
static uintptr_t next = (uintptr_t)1 << 44;

static struct range *ranges; /* by start, never overlapping */
static size_t n_ranges, room_ranges;

static struct device_stream *streams[STREAM_SLOTS];  /* by handle */
static struct device_stream *in_order[STREAM_SLOTS]; /* by first use */
static size_t n_streams;

void device_configure(size_t new_capacity, enum device_policy new_policy, uintptr_t new_base) {
  capacity = new_capacity;
  policy = new_policy;
  base = next = new_base;
  used = 0;
  n_ranges = 0;
  device_finish_all();
}

size_t device_capacity(void) { return capacity; }
size_t device_free_bytes(void) { return capacity - used; }
size_t device_ranges(void) { return n_ranges; }

static size_t whole_pages(size_t size) {
  return (size + DEVICE_PAGE - 1) / DEVICE_PAGE * DEVICE_PAGE;
}

/* The index of the first range that starts above `address`. */
static size_t above(uintptr_t address) {
  size_t low = 0, high = n_ranges;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].start > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static int insert(size_t index, struct range range) {
  if (n_ranges == room_ranges) {
    size_t room = room_ranges ? room_ranges * 2 : 256;
    struct range *grown = realloc(ranges, room * sizeof *grown);
    if (!grown) return -1;
    ranges = grown;
    room_ranges = room;
  }
  memmove(ranges + index + 1, ranges + index, (n_ranges - index) * sizeof *ranges);
  ranges[index] = range;
  n_ranges++;
  return 0;
}

/* The lowest hole of `size` bytes: its address, and in `index` where its range belongs. */
static uintptr_t lowest_hole(size_t size, size_t *index) {
  uintptr_t hole = base;
  size_t i = 0;
  for (; i < n_ranges && ranges[i].start - hole < size; i++)
    hole = ranges[i].start + ranges[i].size;
  *index = i;
  return hole;
}

static uintptr_t place(size_t size, size_t counted) {
  struct range range = {next, whole_pages(size), counted};
  size_t index = n_ranges;
  if (policy == DEVICE_FIRSTFIT) range.start = lowest_hole(range.size, &index);
  if (insert(index, range)) return 0;
  if (policy == DEVICE_BUMP) next += range.size;
  return range.start;
}

uintptr_t device_reserve(size_t size) { return place(size, 0); }

uintptr_t device_malloc(size_t size) {
  size_t counted = whole_pages(size);
  if (counted < size || device_take(counted)) return 0;
  uintptr_t address = place(size, counted);
  if (!address) device_give(counted);
  return address;
}

int device_release(uintptr_t address) {
  size_t i = above(address);
  if (i == 0 || ranges[i - 1].start != address) return -1;
  device_give(ranges[i - 1].counted);
  memmove(ranges + i - 1, ranges + i, (n_ranges - i) * sizeof *ranges);
  n_ranges--;
  return 0;
}

int device_find(uintptr_t address, uintptr_t *start, size_t *size) {
  size_t i = above(address);
  if (i == 0 || address - ranges[i - 1].start >= ranges[i - 1].size) return -1;
  *start = ranges[i - 1].start;
  *size = ranges[i - 1].size;
  return 0;
}

int device_take(size_t size) {
  if (size > capacity - used) return -1;
  used += size;
  return 0;
}

void device_give(size_t size) { used -= size; }

struct device_stream *device_stream(uintptr_t handle) {
  /* Handles are page-like (low bits clear), so the slot looks at the bits above. */
  size_t slot = (handle >> 12 ^ handle) & (STREAM_SLOTS - 1);
  for (size_t tried = 0; tried < STREAM_SLOTS; tried++) {
    struct device_stream *met = streams[slot];
    if (met && met->handle == handle) return met;
    if (met) {
      slot = (slot + 1) & (STREAM_SLOTS - 1);
      continue;
    }
    struct device_stream *fresh = calloc(1, sizeof *fresh);
    if (!fresh) abort();
    fresh->handle = handle;
    in_order[n_streams++] = fresh;
    return streams[slot] = fresh;
  }
  abort();
}

void device_finish(uintptr_t handle) {
  struct device_stream *stream = device_stream(handle);
  stream->finished = stream->submitted;
}

void device_finish_all(void) {
  for (size_t i = 0; i < n_streams; i++) in_order[i]->finished = in_order[i]->submitted;
}

void device_record(struct device_event *event, uintptr_t handle) {
  event->stream = device_stream(handle);
  event->position = ++event->stream->submitted;
}

int device_is_done(const struct device_event *event) {
  return !event->stream || event->stream->finished >= event->position;
}

void device_wait(const struct device_event *event) {
  if (!device_is_done(event)) event->stream->finished = event->position;
}
