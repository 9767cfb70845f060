/* The phantom device: capacity, addresses, streams and events, and nothing else.
 *
 * Rules that every library of this folder relies on:
 *   - memory is counted in whole pages of 2 MiB, a mapped handle by its own size;
 *   - a request that exactly fits the capacity succeeds; the memory of the context and of other
 *     processes is `context` bytes, counted as used from the start;
 *   - addresses are multiples of a page above a base: `bump` never reuses an address, `firstfit`
 *     takes the lowest hole; reservations without memory use the same address space.  `driver`
 *     places memory below the base as the CUDA driver does (arena.h), and reservations above it;
 *   - a stream completes no work by itself: only device_finish completes it, or a wait for an
 *     event, which completes all earlier work of the event's stream.  Under the policy `at-once`,
 *     work is complete as soon as it is submitted;
 *   - nothing is computed, so no address is ever read or written.
 *
 * The device is configured by ALLOCSIM_PHANTOM_MEMORY, _CONTEXT, _POLICY, _BASE, _WORK, _NAME,
 * _CAPABILITY, _MULTIPROCESSORS, _LIMITS (the six integers of device_limits, in their order),
 * _DEVICES and _STARTUP (milliseconds that a process waits for its context), read once when the
 * library is loaded, or by device_configure.
 *
 * Processes with the same file in _SHARED share the memory of one card: the file has the bytes that
 * all of them use and the most that they used, each with the context of every process that has
 * started CUDA.  A process that a signal ends leaves its memory counted.
 *
 * A machine can have several equal devices (_DEVICES). A process uses one of them, as the ranks of a
 * server do.  The memory of a process belongs to the first device that it allocates on, and a
 * request on another device fails.
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

/* Work of one stream: an event is complete once `finished` reaches the event's position. */
struct device_stream {
  uintptr_t handle;
  uint64_t submitted;
  uint64_t finished;
  uint64_t capture; /* graph capture that the stream belongs to, 0 for none */
  uint64_t collectives;
};

struct device_event {
  struct device_stream *stream; /* NULL until recorded */
  uint64_t position;
  uint64_t capture; /* graph capture it was recorded in, 0 for none */
};

/* Limits of one multiprocessor, and the L2 cache of the device. */
struct device_limits {
  int threads, blocks;
  int shared;       /* bytes */
  int block_shared; /* bytes available to a block that opts in */
  int l2;           /* bytes */
  int registers;
};

/* Properties of the card that a program can query. */
struct device_card {
  char name[256];
  int major, minor; /* compute capability */
  int multiprocessors;
  struct device_limits limits;
};

/* Reset to an empty device of `capacity` bytes whose first address is `base`. */
void device_configure(size_t capacity, enum device_policy policy, uintptr_t base);

/* Sleep for the startup time of a context, once per process. */
void device_start_context(void);

#define DEVICE_MOST 64
/* Number of devices, and the device that this thread selected; -1 if there is no such device. */
int device_count(void);
int device_current(void);
int device_select(int device);
/* Device that holds the memory of this process; before the first request, the selected one. */
int device_owner(void);
/* Write the 16 bytes of the UUID of a device. */
void device_uuid(int device, char uuid[16]);

size_t device_capacity(void);
const struct device_card *device_card(void);
/* Return the value of a device attribute, by its number in CUDA's headers; 0 if unknown. */
int device_attribute(int number);
/* Return how many blocks of `threads` threads and `shared` bytes a multiprocessor can hold. */
int device_occupancy(int threads, size_t shared);
size_t device_free_bytes(void);
/* Return the most bytes that were in use at once, with those of the context. */
size_t device_peak_bytes(void);
/* Return the number of address ranges in use; 0 once everything is released. */
size_t device_ranges(void);

/* Allocate address space and memory; return 0 if the device is full. */
uintptr_t device_malloc(size_t size);
/* Reserve address space without memory; return 0 only if the bookkeeping cannot grow. */
uintptr_t device_reserve(size_t size);
/* Release the range that starts at `address` and its memory; return -1 if there is none. */
int device_release(uintptr_t address);
/* Find the range that contains `address`; return -1 if there is none. */
int device_find(uintptr_t address, uintptr_t *start, size_t *size);

/* Take exactly `size` bytes of memory without an address; return -1 if the device is full. */
int device_take(size_t size);
void device_give(size_t size);

/* Memory of the driver for loaded kernels and instantiated graphs, taken in whole pages.  The charges
 * are in _DRIVER, 0 by default: of a kernel, of a node of a graph, of collectives in a graph, of the
 * first kernel, and the least of a graph.  Local memory for the largest stack of a kernel grows for
 * all threads that the device can run at once; the context has 1 KiB for each. */
struct device_driver {
  size_t kernels, graphs, nodes; /* loaded or instantiated so far */
  size_t stack;                  /* most bytes of a thread */
  size_t settled;                /* the same, without variants that are only tried */
  size_t collective_graphs;      /* graphs with collectives of NCCL */
  size_t graph_bytes;            /* most bytes of graphs at once, without what collectives add */
};
const struct device_driver *device_driver(void);
void device_load_kernel(size_t stack);
/* Begin (1) or end (0) to try variants of a kernel; return the largest stack of those tried. */
size_t device_try(int begin);
/* Return -1 if the device is full. */
int device_hold_graph(size_t nodes, int has_collectives);
void device_drop_graph(size_t nodes, int has_collectives);

/* Keep the last copy to the device until the next launch.  Ranks agree on numbers that one of them
 * broadcasts and then reads back; this copy answers that read.  `kept` returns -1 if another range
 * is read or the copy was too long. */
void device_keep(uintptr_t to, const void *from, size_t size);
int device_kept(void *to, uintptr_t from, size_t size);

/* Pinned host memory; `unpin` returns -1 if nothing is pinned at the address. */
int device_pin(uintptr_t address, size_t size);
int device_unpin(uintptr_t address);
int device_is_pinned(uintptr_t address);

struct device_stream *device_stream(uintptr_t handle);
/* Add one piece of work to a stream. */
void device_submit(uintptr_t handle);
/* Add one piece of work that may write any memory, so that a kept copy is dropped. */
void device_launch(uintptr_t handle);
/* Launch a collective of NCCL. */
void device_collective(uintptr_t handle);
void device_finish(uintptr_t handle);
void device_finish_all(void);

void device_record(struct device_event *event, uintptr_t handle);
int device_is_done(const struct device_event *event);
void device_wait(const struct device_event *event);

/* Graph captures.  A stream that waits for a captured event joins the capture. */
void device_capture_begin(uintptr_t handle);
void device_capture_join(uintptr_t handle, const struct device_event *event);
void device_capture_end(uint64_t capture);

/* Note that a library returned a guessed workspace: its true size is known only on a real card. */
void device_note_guess(const char *library);
/* Return the libraries with guesses in alphabetical order, separated by ", "; "" for none. */
const char *device_guesses(void);

/* Copies to the host, by the Python frames that made them (reads.c). */
struct device_read_frame {
  void *code; /* Python code object */
  int line;
};
struct device_read_site {
  size_t times;
  size_t most; /* bytes of the largest copy */
  size_t depth;
  struct device_read_frame frames[]; /* innermost first */
};
/* Turn the recording of reads on or off; return 0 if off or if Python's functions are missing. */
int device_watch_reads(int wanted);
void device_read_back(size_t size);
size_t device_read_sites(const struct device_read_site *const **out);

/* Mode of the next copies to the host by this thread. */
enum device_reads {
  DEVICE_READS_NOTED = 0,   /* copy zeros and record the caller */
  DEVICE_READS_KNOWN = 1,   /* copy zeros, which the caller replaces; record nothing */
  DEVICE_READS_ANSWERED = 2 /* copy `value` if 4 or 8 bytes are read; record nothing */
};
void device_tell_reads(enum device_reads kind, long long value);
enum device_reads device_told_reads(long long *value);

#ifdef __cplusplus
}
#endif
#endif
