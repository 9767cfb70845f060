/* The device that is not there: capacity, addresses, streams and events, and nothing else.
 *
 * Rules kept here (every library of this folder stands on them):
 *   - memory is counted in whole pages of 2 MiB, a mapped handle by its own size;
 *   - what fits the capacity exactly succeeds; what a context and other processes hold is
 *     `context` bytes, counted as used from the start;
 *   - addresses come in page steps from a base: `bump` never reuses one, `firstfit` takes the
 *     lowest hole; reservations of bare address space come out of the same space.  `driver` places
 *     memory below the base as the CUDA driver does (arena.h), reservations above it;
 *   - a stream finishes nothing by itself: its work is done when told (device_finish), and
 *     waiting for an event completes all earlier work of its stream.  Under the policy
 *     `at-once` work is done as soon as it is submitted;
 *   - nothing is computed, so no address is ever read or written.
 *
 * A process tells the device it wants by ALLOCSIM_PHANTOM_MEMORY, _CONTEXT, _POLICY, _BASE,
 * _WORK, _NAME, _CAPABILITY, _MULTIPROCESSORS, _LIMITS (the six integers of device_limits, in their
 * order) and _STARTUP (milliseconds that a process waits for its context), read once at load, or by
 * device_configure.
 */
#ifndef ALLOCSIM_PHANTOM_DEVICE_H
#define ALLOCSIM_PHANTOM_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEVICE_PAGE ((size_t)2 << 20)

enum device_policy { DEVICE_BUMP = 0, DEVICE_FIRSTFIT = 1, DEVICE_DRIVER = 2 };

/* One stream's count of work: an event is done once `finished` has reached its position. */
struct device_stream {
  uintptr_t handle;
  uint64_t submitted;
  uint64_t finished;
  uint64_t capture; /* the graph capture it takes part in, 0 for none */
};

struct device_event {
  struct device_stream *stream; /* NULL until recorded */
  uint64_t position;
  uint64_t capture; /* the capture it was recorded in, 0 for none */
};

/* What one multiprocessor has at once, and the L2 of all. */
struct device_limits {
  int threads, blocks;
  int shared;       /* bytes */
  int block_shared; /* bytes that a block may have on request */
  int l2;           /* bytes */
  int registers;
};

/* What a program may ask the device about itself. */
struct device_card {
  char name[256];
  int major, minor; /* compute capability */
  int multiprocessors;
  struct device_limits limits;
};

/* Start over: an empty device of `capacity` bytes whose first address is `base`. */
void device_configure(size_t capacity, enum device_policy policy, uintptr_t base);

/* Wait as long as the first context of this process takes; nothing from the second call on. */
void device_start_context(void);

size_t device_capacity(void);
const struct device_card *device_card(void);
/* The value of a device attribute by its number in CUDA's headers; 0 for what is not known. */
int device_attribute(int number);
/* How many blocks of `threads` threads and `shared` bytes a multiprocessor runs at once. */
int device_occupancy(int threads, size_t shared);
size_t device_free_bytes(void);
/* How many ranges of the address space are held; 0 once everything was given back. */
size_t device_ranges(void);

/* Address space and memory together; 0 when the device is full. */
uintptr_t device_malloc(size_t size);
/* Address space alone; 0 only when the books cannot grow. */
uintptr_t device_reserve(size_t size);
/* Gives back what starts at `address`, with its memory if it has any; -1: nothing there. */
int device_release(uintptr_t address);
/* The range that holds `address`: its start and its length; -1: none does. */
int device_find(uintptr_t address, uintptr_t *start, size_t *size);

/* Memory without an address, exactly `size` bytes; -1 when the device is full. */
int device_take(size_t size);
void device_give(size_t size);

/* What a copy brought to the device, until anything is launched: ranks agree on numbers that the
 * first of them sends to all, which come straight back.  -1 from `kept`: not that, or too long. */
void device_keep(uintptr_t to, const void *from, size_t size);
int device_kept(void *to, uintptr_t from, size_t size);

/* Host memory that copies may use; -1 from `unpin`: nothing is pinned there. */
int device_pin(uintptr_t address, size_t size);
int device_unpin(uintptr_t address);
int device_is_pinned(uintptr_t address);

struct device_stream *device_stream(uintptr_t handle);
/* One more piece of work for the stream. */
void device_submit(uintptr_t handle);
/* The same, of work that may write anything. */
void device_launch(uintptr_t handle);
void device_finish(uintptr_t handle);
void device_finish_all(void);

void device_record(struct device_event *event, uintptr_t handle);
int device_is_done(const struct device_event *event);
void device_wait(const struct device_event *event);

/* Graph captures: a stream that waits for a captured event takes part in its capture. */
void device_capture_begin(uintptr_t handle);
void device_capture_join(uintptr_t handle, const struct device_event *event);
void device_capture_end(uint64_t capture);

/* A library told a workspace whose true size only its own code on a real card knows. */
void device_note_guess(const char *library);
/* The libraries that did, separated by ", " in the order of the alphabet; "" for none. */
const char *device_guesses(void);

/* Copies to the host, by the Python frames that asked for them (reads.c). */
struct device_read_frame {
  void *code; /* a code object of Python */
  int line;
};
struct device_read_site {
  size_t times;
  size_t most; /* bytes of the largest of its copies */
  size_t depth;
  struct device_read_frame frames[]; /* the innermost first */
};
/* From here on (0: no longer) notes are kept; 0: this process's Python cannot be asked. */
int device_watch_reads(int wanted);
void device_read_back(size_t size);
size_t device_read_sites(const struct device_read_site *const **out);

/* What becomes of the copies to the host that this thread makes from here on. */
enum device_reads {
  DEVICE_READS_NOTED = 0,   /* zeros, and where is noted */
  DEVICE_READS_KNOWN = 1,   /* zeros that the caller replaces, and nothing is noted */
  DEVICE_READS_ANSWERED = 2 /* those of 4 or 8 bytes bring `value`; nothing is noted */
};
void device_tell_reads(enum device_reads kind, long long value);
enum device_reads device_told_reads(long long *value);

#ifdef __cplusplus
}
#endif
#endif
