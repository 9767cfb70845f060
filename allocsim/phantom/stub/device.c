/* Bookkeeping of the phantom device; device.h has the rules. */
#define _GNU_SOURCE
#include "device.h"

#include "arena.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Autograd, data loading and the program call from different threads. */
static pthread_mutex_t books_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int lock_books(void) { return pthread_mutex_lock(&books_lock); }
static void unlock_books(int *ignored) {
  (void)ignored;
  pthread_mutex_unlock(&books_lock);
}
/* Hold the lock to the end of the enclosing block. */
#define LOCKED __attribute__((cleanup(unlock_books))) int locked = lock_books(); (void)locked

struct range {
  uintptr_t start;
  size_t size;    /* address space, whole pages */
  size_t counted; /* bytes of the capacity that it uses; 0 for a bare reservation */
  int is_of_arena;
};

/* Bytes of shared memory per block that the system reserves, from capability 8.0. */
#define RESERVED_SHARED (card.major >= 8 ? 1024 : 0)

#define STREAM_SLOTS 65536 /* a power of two, far above the number of streams of any script */

static size_t capacity = (size_t)16 << 30;
static size_t used, most_used;
static size_t context; /* bytes of `used` */

/* Use of the card by all processes that map one file; NULL if the card is not shared. */
static struct {
  _Atomic size_t used, most_used;
} *card_books;
static pid_t sharer; /* process whose memory is in `card_books` */

/* Count `size` bytes of this process on the shared card; return -1 if it is full. */
static int share(size_t size) {
  if (!card_books) return 0;
  size_t before = atomic_load(&card_books->used);
  do {
    if (before > capacity || size > capacity - before) return -1;
  } while (!atomic_compare_exchange_weak(&card_books->used, &before, before + size));
  const size_t now = before + size;
  size_t most = atomic_load(&card_books->most_used);
  while (now > most && !atomic_compare_exchange_weak(&card_books->most_used, &most, now)) {
  }
  return 0;
}

static void map_card(const char *path) {
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  if (!ftruncate(file, sizeof *card_books)) {
    void *found = mmap(NULL, sizeof *card_books, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) card_books = found;
  }
  close(file);
}

__attribute__((destructor)) static void leave_card(void) {
  if (card_books && sharer == getpid()) atomic_fetch_sub(&card_books->used, used);
}
static enum device_policy policy = DEVICE_BUMP;
static uintptr_t base = (uintptr_t)1 << 44;
static uintptr_t next = (uintptr_t)1 << 44;

struct book { /* disjoint ranges, sorted by start */
  struct range *ranges;
  size_t count, room;
};
static struct book space, pinned;

static int at_once; /* the work policy */
static struct device_card card = {
    "allocsim phantom", 8, 0, 108, {2048, 32, 164 << 10, 163 << 10, 40 << 20, 65536}};

static struct device_stream *streams[STREAM_SLOTS];  /* by handle */
static struct device_stream *in_order[STREAM_SLOTS]; /* by first use */
static size_t n_streams;

static int n_devices = 1;
static int owner = -1; /* -1 until the first request */
static __thread int selected;

int device_count(void) { return n_devices; }
int device_current(void) { return selected; }
int device_select(int device) {
  if (device < 0 || device >= n_devices) return -1;
  selected = device;
  return 0;
}
int device_owner(void) { return owner < 0 ? selected : owner; }
void device_uuid(int device, char uuid[16]) {
  memcpy(uuid, "allocsim-phantom", 16);
  uuid[15] = (char)(uuid[15] + device);
}

/* Return 0 if the selected device can hold memory of this process. */
static int own(void) {
  if (owner < 0) owner = selected;
  if (owner == selected) return 0;
  fprintf(stderr, "allocsim: a process that uses device %d requested memory of device %d; a phantom "
          "GPU expects one process per device\n", owner, selected);
  return -1;
}

void device_configure(size_t new_capacity, enum device_policy new_policy, uintptr_t new_base) {
  LOCKED;
  capacity = new_capacity;
  policy = new_policy;
  base = next = new_base;
  used = most_used = 0;
  owner = -1;
  space.count = 0;
  arena_reset(base);
  device_finish_all();
}

static struct device_driver driver = {0, 0, 0, 1024, 1024, 0, 0};
static struct { int now; size_t stack; } tried;
static struct {
  size_t kernel, node, collective, modules, graph;
} charges; /* bytes */
static size_t charged, charged_pages;
static size_t graph_bytes; /* of `charged`, without what collectives add */

static unsigned startup; /* milliseconds */
static pid_t started;    /* process that has its context */

void device_start_context(void) {
  LOCKED;
  if (started == getpid()) return;
  started = getpid();
  if (card_books && !share(context)) sharer = started;
  usleep(startup * 1000);
}

static const char *variable(const char *name) {
  const char *text = getenv(name);
  return text && *text ? text : NULL;
}

__attribute__((constructor)) static void configure_from_environment(void) {
  const char *text;
  if ((text = variable("ALLOCSIM_PHANTOM_MEMORY"))) capacity = strtoull(text, NULL, 10);
  if ((text = variable("ALLOCSIM_PHANTOM_CONTEXT"))) used = strtoull(text, NULL, 10);
  if ((text = variable("ALLOCSIM_PHANTOM_SHARED"))) map_card(text);
  if ((text = variable("ALLOCSIM_PHANTOM_POLICY")))
    policy = !strcmp(text, "driver")     ? DEVICE_DRIVER
             : !strcmp(text, "firstfit") ? DEVICE_FIRSTFIT
                                         : DEVICE_BUMP;
  if ((text = variable("ALLOCSIM_PHANTOM_DRIVER")))
    sscanf(text, "%zu %zu %zu %zu %zu", &charges.kernel, &charges.node, &charges.collective,
           &charges.modules, &charges.graph);
  if ((text = variable("ALLOCSIM_PHANTOM_BASE"))) base = next = strtoull(text, NULL, 10);
  if ((text = variable("ALLOCSIM_PHANTOM_DEVICES"))) n_devices = atoi(text);
  if ((text = variable("ALLOCSIM_PHANTOM_STARTUP"))) startup = (unsigned)strtoul(text, NULL, 10);
  if ((text = variable("ALLOCSIM_PHANTOM_WORK"))) at_once = strcmp(text, "at-once") == 0;
  if ((text = variable("ALLOCSIM_PHANTOM_NAME"))) snprintf(card.name, sizeof card.name, "%s", text);
  if ((text = variable("ALLOCSIM_PHANTOM_CAPABILITY")))
    sscanf(text, "%d.%d", &card.major, &card.minor);
  if ((text = variable("ALLOCSIM_PHANTOM_MULTIPROCESSORS"))) card.multiprocessors = atoi(text);
  if ((text = variable("ALLOCSIM_PHANTOM_LIMITS"))) {
    struct device_limits *limits = &card.limits;
    sscanf(text, "%d %d %d %d %d %d", &limits->threads, &limits->blocks, &limits->shared,
           &limits->block_shared, &limits->l2, &limits->registers);
  }
  if (n_devices < 1) n_devices = 1;
  if (n_devices > DEVICE_MOST) n_devices = DEVICE_MOST;
  if (used > capacity) used = capacity;
  most_used = context = used;
  arena_reset(base);
  if ((text = variable("ALLOCSIM_PHANTOM_CONTEXT_CHUNKS"))) arena_add_context(text);
}

size_t device_capacity(void) { return capacity; }
size_t device_free_bytes(void) {
  return capacity - (card_books ? atomic_load(&card_books->used) : used);
}
size_t device_peak_bytes(void) { return most_used; }
size_t device_ranges(void) { return space.count; }
const struct device_card *device_card(void) { return &card; }

int device_attribute(int number) {
  switch (number) {
    case 1: return 1024;                  /* threads per block */
    case 2: case 3: return 1024;          /* block size along x and y */
    case 4: return 64;                    /* and along z */
    case 5: return 2147483647;            /* grid size along x */
    case 6: case 7: return 65535;         /* and along y and z */
    case 8: return 48 << 10;              /* shared memory per block without opt-in */
    case 10: return 32;                   /* warp size */
    case 12: case 82: return card.limits.registers; /* per block and per multiprocessor */
    case 16: return card.multiprocessors;
    case 31: case 41: case 95: return 1;  /* concurrent kernels, unified addresses, cooperation */
    case 38: return card.limits.l2;
    case 39: return card.limits.threads;  /* per multiprocessor */
    case 81: return card.limits.shared;   /* per multiprocessor */
    case 75: return card.major;
    case 76: return card.minor;
    case 97: return card.limits.block_shared;
    case 106: return card.limits.blocks;
    case 111: return RESERVED_SHARED;     /* shared memory per block for the system */
    default: return 0;                    /* includes fabric, peers and memory pools: none */
  }
}

int device_occupancy(int threads, size_t shared) {
  const struct device_limits *limits = &card.limits;
  if (threads < 1 || threads > limits->threads) return 1;
  int blocks = limits->threads / threads;
  const size_t fit = shared ? (size_t)limits->shared / (shared + (size_t)RESERVED_SHARED) : 0;
  if (shared && fit < (size_t)blocks) blocks = fit ? (int)fit : 1;
  return blocks < limits->blocks ? blocks : limits->blocks;
}

static size_t whole_pages(size_t size) {
  return (size + DEVICE_PAGE - 1) / DEVICE_PAGE * DEVICE_PAGE;
}

/* Return the index of the first range of `book` that starts above `address`. */
static size_t above(const struct book *book, uintptr_t address) {
  size_t low = 0, high = book->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (book->ranges[middle].start > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static int insert(struct book *book, size_t index, struct range range) {
  if (book->count == book->room) {
    size_t room = book->room ? book->room * 2 : 256;
    struct range *grown = realloc(book->ranges, room * sizeof *grown);
    if (!grown) return -1;
    book->ranges = grown;
    book->room = room;
  }
  struct range *at = book->ranges + index;
  memmove(at + 1, at, (book->count - index) * sizeof *at);
  *at = range;
  book->count++;
  return 0;
}

/* Remove the range that starts at `address` from `book`; return -1 if there is none. */
static int remove_start(struct book *book, uintptr_t address, struct range *removed) {
  size_t i = above(book, address);
  struct range *range = book->ranges + i - 1;
  if (i == 0 || range->start != address) return -1;
  *removed = *range;
  memmove(range, range + 1, (book->count - i) * sizeof *range);
  book->count--;
  return 0;
}

/* Return the range of `book` that contains `address`, or NULL. */
static const struct range *holder(const struct book *book, uintptr_t address) {
  size_t i = above(book, address);
  const struct range *range = book->ranges + i - 1;
  return i == 0 || address - range->start >= range->size ? NULL : range;
}

/* Return the address of the lowest hole of `size` bytes; set `index` to its place in the book. */
static uintptr_t lowest_hole(size_t size, size_t *index) {
  const struct range *ranges = space.ranges;
  uintptr_t hole = base;
  size_t i = 0;
  for (; i < space.count && ranges[i].start - hole < size; i++)
    hole = ranges[i].start + ranges[i].size;
  *index = i;
  return hole;
}

/* Choose an address.  Under `driver`, memory is in the arena and reservations follow above it. */
static uintptr_t place(size_t size, size_t counted) {
  struct range range = {next, whole_pages(size), counted, policy == DEVICE_DRIVER && counted};
  size_t index = space.count;
  if (policy == DEVICE_FIRSTFIT) range.start = lowest_hole(range.size, &index);
  if (range.is_of_arena) {
    if (!(range.start = arena_place(range.size))) return 0;
    index = above(&space, range.start);
  }
  if (insert(&space, index, range)) return 0;
  if (policy != DEVICE_FIRSTFIT && !range.is_of_arena) next += range.size;
  return range.start;
}

uintptr_t device_reserve(size_t size) {
  LOCKED;
  return place(size, 0);
}

uintptr_t device_malloc(size_t size) {
  LOCKED;
  size_t counted = whole_pages(size);
  if (counted < size || device_take(counted)) return 0;
  uintptr_t address = place(size, counted);
  if (!address) device_give(counted);
  return address;
}

int device_release(uintptr_t address) {
  LOCKED;
  struct range removed;
  if (remove_start(&space, address, &removed)) return -1;
  if (removed.is_of_arena) arena_release(removed.start, removed.size);
  device_give(removed.counted);
  return 0;
}

int device_find(uintptr_t address, uintptr_t *start, size_t *size) {
  LOCKED;
  const struct range *range = holder(&space, address);
  if (!range) return -1;
  *start = range->start;
  *size = range->size;
  return 0;
}

int device_take(size_t size) {
  LOCKED;
  if (own()) return -1;
  if (card_books) device_start_context();
  if (size > capacity - used || share(size)) return -1;
  used += size;
  if (used > most_used) most_used = used;
  return 0;
}

void device_give(size_t size) {
  LOCKED;
  used -= size;
  if (card_books) atomic_fetch_sub(&card_books->used, size);
}

const struct device_driver *device_driver(void) { return &driver; }

/* Take or give pages until they hold `charged` bytes. */
static int charge(void) {
  const size_t pages = whole_pages(charged);
  if (pages > charged_pages && device_take(pages - charged_pages)) return -1;
  if (pages < charged_pages) device_give(charged_pages - pages);
  charged_pages = pages;
  return 0;
}

void device_load_kernel(size_t stack) {
  LOCKED;
  size_t *const most = tried.now ? &tried.stack : &driver.settled;
  if (stack > *most) *most = stack;
  if (!driver.kernels++) charged += charges.modules;
  charged += charges.kernel;
  if (charges.kernel && stack > driver.stack) {
    const size_t threads = (size_t)card.multiprocessors * (size_t)card.limits.threads;
    charged += (stack - driver.stack) * threads;
    driver.stack = stack;
  }
  charge();
}

size_t device_try(int begin) {
  LOCKED;
  if (begin) tried.stack = 0;
  tried.now = begin;
  return tried.stack;
}

static size_t plain_graph(size_t nodes) {
  const size_t size = nodes * charges.node;
  return size > charges.graph ? size : charges.graph;
}

int device_hold_graph(size_t nodes, int has_collectives) {
  LOCKED;
  const size_t plain = plain_graph(nodes);
  const size_t size = plain + (has_collectives ? charges.collective : 0);
  driver.graphs++;
  driver.collective_graphs += (size_t)has_collectives;
  driver.nodes += nodes;
  charged += size;
  if (charge()) {
    charged -= size;
    return -1;
  }
  graph_bytes += plain;
  if (graph_bytes > driver.graph_bytes) driver.graph_bytes = graph_bytes;
  return 0;
}

void device_drop_graph(size_t nodes, int has_collectives) {
  LOCKED;
  const size_t plain = plain_graph(nodes);
  charged -= plain + (has_collectives ? charges.collective : 0);
  graph_bytes -= plain;
  charge();
}

int device_pin(uintptr_t address, size_t size) {
  LOCKED;
  struct range range = {address, size ? size : 1, 0, 0};
  return insert(&pinned, above(&pinned, address), range);
}

int device_unpin(uintptr_t address) {
  LOCKED;
  struct range removed;
  return remove_start(&pinned, address, &removed);
}

int device_is_pinned(uintptr_t address) {
  LOCKED;
  return holder(&pinned, address) != NULL;
}

struct device_stream *device_stream(uintptr_t handle) {
  LOCKED;
  /* The low bits of handles are zero, as those of pages, so the slot also uses the bits above. */
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

void device_submit(uintptr_t handle) {
  LOCKED;
  struct device_stream *stream = device_stream(handle);
  stream->submitted++;
  if (at_once) stream->finished = stream->submitted;
}

static struct {
  uintptr_t start; /* 0 if nothing is kept */
  size_t size;
  char bytes[64 << 10];
} kept;

void device_keep(uintptr_t to, const void *from, size_t size) {
  LOCKED;
  kept.start = size <= sizeof kept.bytes ? to : 0;
  kept.size = size;
  if (kept.start) memcpy(kept.bytes, from, size);
}

int device_kept(void *to, uintptr_t from, size_t size) {
  LOCKED;
  if (!kept.start || kept.start != from || kept.size != size) return -1;
  memcpy(to, kept.bytes, size);
  return 0;
}

void device_launch(uintptr_t handle) {
  LOCKED;
  kept.start = 0;
  arena_load_kernels();
  device_submit(handle);
}

void device_collective(uintptr_t handle) {
  LOCKED;
  device_launch(handle);
  device_stream(handle)->collectives++;
}

void device_finish(uintptr_t handle) {
  LOCKED;
  struct device_stream *stream = device_stream(handle);
  stream->finished = stream->submitted;
}

void device_finish_all(void) {
  LOCKED;
  for (size_t i = 0; i < n_streams; i++) in_order[i]->finished = in_order[i]->submitted;
}

void device_record(struct device_event *event, uintptr_t handle) {
  LOCKED;
  device_submit(handle);
  event->stream = device_stream(handle);
  event->position = event->stream->submitted;
  event->capture = event->stream->capture;
}

int device_is_done(const struct device_event *event) {
  LOCKED;
  return !event->stream || event->stream->finished >= event->position;
}

void device_wait(const struct device_event *event) {
  LOCKED;
  /* Work submitted after the event stays unfinished. */
  if (!device_is_done(event)) event->stream->finished = event->position;
}

/* Names of libraries, in alphabetical order. */
static struct {
  const char *library;
  int is_noted;
} guesses[] = {{"cuDNN", 0}, {"cuFFT", 0}, {"cuSOLVER", 0}};

void device_note_guess(const char *library) {
  for (size_t i = 0; i < sizeof guesses / sizeof *guesses; i++)
    if (!strcmp(guesses[i].library, library)) guesses[i].is_noted = 1;
}

const char *device_guesses(void) {
  static char text[64];
  *text = 0;
  for (size_t i = 0; i < sizeof guesses / sizeof *guesses; i++)
    if (guesses[i].is_noted)
      strcat(strcat(text, *text ? ", " : ""), guesses[i].library);
  return text;
}

void device_capture_begin(uintptr_t handle) {
  LOCKED;
  static uint64_t captures;
  device_stream(handle)->capture = ++captures;
}

void device_capture_join(uintptr_t handle, const struct device_event *event) {
  LOCKED;
  if (event->capture) device_stream(handle)->capture = event->capture;
}

void device_capture_end(uint64_t capture) {
  LOCKED;
  for (size_t i = 0; i < n_streams; i++)
    if (in_order[i]->capture == capture) in_order[i]->capture = 0;
}
