/* Queries to the installed cuDNN: copy a graph into it and read its first configuration.
 *
 * The program's own cuDNN is looked up, never loaded, so a program without it gets no answer.  The
 * workspace is read from the configuration, before a plan is made, which takes milliseconds.
 * The card is described as JSON with the keys that cuDNN's device descriptor requires; clock rates
 * are zero, as everywhere on the phantom, and affect no answer.
 */
#define _GNU_SOURCE
#include "dnn_installed.h"

#include "device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Numbers of cudnn_graph.h that only this file uses. */
enum { DNN_KNOB_CHOICE = 7, DNN_DEVICE = 38 };
enum {
  HEURISTICS_MODE = 200,
  HEURISTICS_GRAPH = 201,
  HEURISTICS_RESULTS = 202,
  HEURISTICS_DEVICE = 204,
  CONFIG_KNOBS = 302,
  CONFIG_WORKSPACE = 303,
  KNOB_KIND = 600,
  KNOB_VALUE = 601,
  GRAPH_HANDLE = 800,
  DEVICE_JSON = 2702,
};
enum {
  IS_INT64 = 3,
  IS_HEURISTICS_MODE = 8,
  IS_KNOB = 9,
  IS_DESCRIPTOR = 15,
  IS_CHARACTER = 24,
};
enum { INSTANT = 0 };
enum { CUDA_13 = 13000 };
enum { MOST_CONFIGS = 64, MOST_TEXT = 2048 };

typedef void *descriptor;

static struct {
  int (*create)(int, descriptor *);
  int (*destroy)(descriptor);
  int (*finalize)(descriptor);
  int (*set)(descriptor, int, int, int64_t, const void *);
  int (*get)(descriptor, int, int, int64_t, int64_t *, void *);
  descriptor card; /* NULL if this cuDNN cannot describe one */
} installed;

static int describe_card(descriptor *out) {
  const struct device_card *card = device_card();
  char text[MOST_TEXT];
  const int length = snprintf(
      text, sizeof text,
      "{\"deviceName\":\"%s\",\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":%d,"
      "\"totalGlobalMem\":%zu,\"multiProcessorCount\":%d,\"maxThreadsPerBlock\":%d,"
      "\"maxBlockSize\":[%d,%d,%d],\"maxGridSize\":[%d,%d,%d],\"maxSharedMemoryPerBlock\":%d,"
      "\"warpSize\":%d,\"regsPerBlock\":%d,\"smClockRateKHz\":0,\"memClockRateKHz\":0,"
      "\"pciDeviceId\":0,\"isTccDriver\":0,\"l2CacheSize\":%d,\"maxThreadsPerSM\":%d,"
      "\"maxRegistersPerSM\":%d,\"supportCoopLaunch\":%d,\"maxSharedMemoryPerBlockOptin\":%d,"
      "\"maxCtasPerSM\":%d,\"reservedSharedMemoryPerBlock\":%d}",
      card->name, card->major * 100 + card->minor * 10, CUDA_13, device_capacity(),
      card->multiprocessors, device_attribute(1), device_attribute(2), device_attribute(3),
      device_attribute(4), device_attribute(5), device_attribute(6), device_attribute(7),
      device_attribute(8), device_attribute(10), device_attribute(12), device_attribute(38),
      device_attribute(39), device_attribute(82), device_attribute(95), device_attribute(97),
      device_attribute(106), device_attribute(111));
  if (length < 0 || (size_t)length >= sizeof text || installed.create(DNN_DEVICE, out)) return 0;
  return !installed.set(*out, DEVICE_JSON, IS_CHARACTER, length, text) && !installed.finalize(*out);
}

/* Find the functions of the program's own cuDNN, which this library hides. */
static void find_installed(void) {
  void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return;
  installed.create = dlsym(library, "cudnnBackendCreateDescriptor");
  installed.destroy = dlsym(library, "cudnnBackendDestroyDescriptor");
  installed.finalize = dlsym(library, "cudnnBackendFinalize");
  installed.set = dlsym(library, "cudnnBackendSetAttribute");
  installed.get = dlsym(library, "cudnnBackendGetAttribute");
  const int is_whole = installed.create && installed.destroy && installed.finalize &&
                       installed.set && installed.get;
  descriptor card = NULL;
  if (is_whole && describe_card(&card)) installed.card = card;
}

/* --- copies of the program's descriptors ----------------------------------------------------- */

static descriptor copy_of(const struct dnn_descriptor *from);

static int copy_attribute(void *to, int name, int type, size_t n, const void *elements) {
  if (name == GRAPH_HANDLE) return 1; /* the handle belongs to the stub */
  if (type != IS_DESCRIPTOR) return !installed.set(to, name, type, (int64_t)n, elements);
  descriptor copies[MOST_CONFIGS];
  size_t made = 0;
  while (made < n && made < MOST_CONFIGS &&
         (copies[made] = copy_of(((struct dnn_descriptor *const *)elements)[made])))
    made++;
  const int is_set = made == n && !installed.set(to, name, type, (int64_t)n, copies);
  for (size_t i = 0; i < made; i++) installed.destroy(copies[i]);
  return is_set;
}

static descriptor copy_of(const struct dnn_descriptor *from) {
  descriptor made = NULL;
  if (installed.create(dnn_kind_of(from), &made)) return NULL;
  if (dnn_each_attribute(from, copy_attribute, made) && !installed.finalize(made)) return made;
  installed.destroy(made);
  return NULL;
}

/* --- query ----------------------------------------------------------------------------------- */

static int read_knob(descriptor knob, struct dnn_choice *out) {
  int64_t n;
  int kind;
  int64_t value;
  if (installed.get(knob, KNOB_KIND, IS_KNOB, 1, &n, &kind)) return 0;
  if (installed.get(knob, KNOB_VALUE, IS_INT64, 1, &n, &value)) return 0;
  out->knobs[out->n_knobs].kind = kind;
  out->knobs[out->n_knobs++].value = value;
  return 1;
}

static int read_knobs(descriptor config, struct dnn_choice *out) {
  descriptor knobs[DNN_MOST_KNOBS];
  int64_t n = 0;
  size_t made = 0;
  while (made < DNN_MOST_KNOBS && !installed.create(DNN_KNOB_CHOICE, &knobs[made])) made++;
  int is_read = made == DNN_MOST_KNOBS &&
                !installed.get(config, CONFIG_KNOBS, IS_DESCRIPTOR, (int64_t)made, &n, knobs);
  for (int64_t i = 0; is_read && i < n && i < (int64_t)made; i++)
    is_read = read_knob(knobs[i], out);
  while (made) installed.destroy(knobs[--made]);
  return is_read;
}

static int read_config(descriptor config, struct dnn_choice *out) {
  int64_t n;
  out->n_knobs = 0;
  return !installed.get(config, CONFIG_WORKSPACE, IS_INT64, 1, &n, &out->workspace) &&
         read_knobs(config, out);
}

static int read_first(descriptor heuristics, struct dnn_choice *out) {
  int64_t n = 0;
  descriptor config = NULL;
  if (installed.create(DNN_ENGINE_CONFIG, &config)) return 0;
  const int is_read =
      !installed.get(heuristics, HEURISTICS_RESULTS, IS_DESCRIPTOR, 1, &n, &config) && n > 0 &&
      read_config(config, out);
  installed.destroy(config);
  return is_read;
}

static int ask(const struct dnn_descriptor *graph, struct dnn_choice *out) {
  const int mode = INSTANT;
  descriptor heuristics = NULL, copy = copy_of(graph);
  if (!copy) return 0;
  int is_known = !installed.create(DNN_HEURISTICS, &heuristics);
  is_known = is_known && !installed.set(heuristics, HEURISTICS_GRAPH, IS_DESCRIPTOR, 1, &copy) &&
             !installed.set(heuristics, HEURISTICS_MODE, IS_HEURISTICS_MODE, 1, &mode) &&
             !installed.set(heuristics, HEURISTICS_DEVICE, IS_DESCRIPTOR, 1, &installed.card) &&
             !installed.finalize(heuristics) && read_first(heuristics, out);
  if (heuristics) installed.destroy(heuristics);
  installed.destroy(copy);
  return is_known;
}

int64_t dnn_knob_of(const struct dnn_choice *choice, enum dnn_knob kind) {
  for (size_t i = 0; i < choice->n_knobs; i++)
    if (choice->knobs[i].kind == (int)kind) return choice->knobs[i].value;
  return -1;
}

int dnn_installed_choice(const struct dnn_descriptor *graph, struct dnn_choice *out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_once(&once, find_installed);
  if (!installed.card) return 0;
  pthread_mutex_lock(&mutex);
  const int is_known = ask(graph, out);
  pthread_mutex_unlock(&mutex);
  return is_known;
}
