/* Recording of the Python frames from which a program reads values back from the device.
 *
 * Rule: the program is not affected.  No Python code runs here, so nothing can raise or interrupt.
 * Only the frames of the copying thread are read, by functions of the program's own Python that are
 * looked up in the process.  If they are missing (another interpreter, Python 3.8), nothing is
 * recorded.
 */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SITES = 1024, DEPTH = 64 };

static struct python {
  void *(*thread)(void); /* NULL if recording is off */
  int (*lock)(void);
  void (*unlock)(int);
  void *(*frame)(void);     /* the current frame, a borrowed reference */
  void *(*back)(void *);    /* this and the following return new references */
  void *(*code)(void *);
  int (*line)(void *);
  void (*drop)(void *);
} python;

static pthread_mutex_t sites_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device_read_site *sites[SITES];
static size_t n_sites;

int device_watch_reads(int wanted) {
  static struct python found;
  memset(&python, 0, sizeof python);
  if (!wanted) return 0;
  struct {
    const char *name;
    void *place;
  } functions[] = {
      {"PyGILState_GetThisThreadState", &found.thread},
      {"PyGILState_Ensure", &found.lock},
      {"PyGILState_Release", &found.unlock},
      {"PyEval_GetFrame", &found.frame},
      {"PyFrame_GetBack", &found.back},
      {"PyFrame_GetCode", &found.code},
      {"PyFrame_GetLineNumber", &found.line},
      {"Py_DecRef", &found.drop},
  };
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *function = dlsym(RTLD_DEFAULT, functions[i].name);
    if (!function) return 0;
    memcpy(functions[i].place, &function, sizeof function);
  }
  python = found;
  return 1;
}

/* Store the frames of this thread, innermost first; keep a reference to each code object. */
static size_t frames_of(struct device_read_frame *frames) {
  size_t depth = 0;
  void *frame = python.frame();
  for (int is_owned = 0; frame && depth < DEPTH; is_owned = 1) {
    frames[depth++] = (struct device_read_frame){python.code(frame), python.line(frame)};
    void *next = python.back(frame);
    /* Only the first frame is a borrowed reference. */
    if (is_owned) python.drop(frame);
    frame = next;
  }
  if (frame && depth == DEPTH) python.drop(frame);
  return depth;
}

/* Equal stacks share a site.  When the table is full, further stacks are not recorded. */
static struct device_read_site *site_of(const struct device_read_frame *frames, size_t depth) {
  const size_t size = depth * sizeof *frames;
  for (size_t i = 0; i < n_sites; i++)
    if (sites[i]->depth == depth && !memcmp(sites[i]->frames, frames, size)) return sites[i];
  if (n_sites == SITES) return NULL;
  struct device_read_site *fresh = calloc(1, sizeof *fresh + size);
  if (!fresh) return NULL;
  fresh->depth = depth;
  memcpy(fresh->frames, frames, size);
  return sites[n_sites++] = fresh;
}

static __thread struct {
  enum device_reads kind;
  long long value;
} mode;

void device_tell_reads(enum device_reads kind, long long value) {
  mode.kind = kind;
  mode.value = value;
}

enum device_reads device_told_reads(long long *value) {
  *value = mode.value;
  return mode.kind;
}

void device_read_back(size_t size) {
  if (mode.kind != DEVICE_READS_NOTED) return;
  if (!python.thread || !python.thread()) return;
  struct device_read_frame frames[DEPTH];
  memset(frames, 0, sizeof frames);
  const int state = python.lock();
  const size_t depth = frames_of(frames);
  /* No deadlock with Python's lock, which is held here: no holder of sites_lock waits for it. */
  pthread_mutex_lock(&sites_lock);
  const size_t before = n_sites;
  struct device_read_site *site = site_of(frames, depth);
  if (site) {
    site->times++;
    if (size > site->most) site->most = size;
  }
  const int is_kept = n_sites > before;
  pthread_mutex_unlock(&sites_lock);
  if (!is_kept)
    for (size_t i = 0; i < depth; i++) python.drop(frames[i].code);
  python.unlock(state);
}

size_t device_read_sites(const struct device_read_site *const **out) {
  *out = (const struct device_read_site *const *)sites;
  return n_sites;
}
