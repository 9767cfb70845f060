/* cuDNN's graph interface: a store of descriptors; dnn_backend.h describes its purpose.
 *
 * Rules:
 *   - an attribute is a copy of the elements that were set, and a descriptor among them is kept
 *     until every descriptor that refers to it is destroyed;
 *   - a graph has one engine with one configuration if a law knows its workspace; the
 *     heuristics refuse every other graph;
 *   - executing a plan is one piece of work for the stream of the handle.
 */
#include "dnn_backend.h"

#include "device.h"

#include <stdlib.h>
#include <string.h>

static dnn_law *const laws[] = {dnn_attention_workspace, dnn_convolution_workspace};

/* --- attributes ------------------------------------------------------------------------------ */

/* Numbers of cudnn_graph.h that only the store reads. */
enum {
  HEURISTICS_GRAPH = 201,
  HEURISTICS_RESULTS = 202,
  CONFIG_ENGINE = 300,
  CONFIG_WORKSPACE = 303,
  CONFIG_SHARED_MEMORY = 304,
  PLAN_CONFIG = 401,
  PLAN_WORKSPACE = 402,
  GRAPH_ENGINES = 802,
  TENSOR_TYPE = 901,
  TENSOR_SIZES = 902,
  TENSOR_STRIDES = 903,
  TENSOR_UID = 906,
  TENSOR_IS_VIRTUAL = 907,
  ENGINE_GRAPH = 1300,
  ENGINE_INDEX = 1301,
};
enum { IS_BOOLEAN = 2, IS_INT64 = 3, IS_DOUBLE = 5, IS_POINTER = 6, IS_DESCRIPTOR = 15,
       IS_CHARACTER = 24, IS_FRACTION = 26 };

/* Bytes of one element of an attribute type: enumerations, float and int32 have four. */
static size_t element_size(int type) {
  switch (type) {
    case IS_BOOLEAN:
    case IS_CHARACTER:
      return 1;
    case 0: /* a handle */
    case IS_INT64:
    case IS_DOUBLE:
    case IS_POINTER:
    case IS_DESCRIPTOR:
      return 8;
    case IS_FRACTION:
      return 16;
    default:
      return 4;
  }
}

struct attribute {
  int name, type;
  size_t n; /* elements */
  void *elements;
  struct attribute *next;
};

struct dnn_descriptor {
  int kind;
  int is_finalized;
  int references;
  struct attribute *attributes;
};

static struct attribute *attribute_of(const struct dnn_descriptor *descriptor, int name) {
  if (!descriptor) return NULL;
  struct attribute *attribute = descriptor->attributes;
  while (attribute && attribute->name != name) attribute = attribute->next;
  return attribute;
}

static struct dnn_descriptor *retain(struct dnn_descriptor *descriptor) {
  if (descriptor) __atomic_add_fetch(&descriptor->references, 1, __ATOMIC_RELAXED);
  return descriptor;
}

static void release(struct dnn_descriptor *descriptor);

static void clear(struct attribute *attribute) {
  if (attribute->type == IS_DESCRIPTOR)
    for (size_t i = 0; i < attribute->n; i++)
      release(((struct dnn_descriptor **)attribute->elements)[i]);
  free(attribute->elements);
  attribute->elements = NULL;
  attribute->n = 0;
}

static void release(struct dnn_descriptor *descriptor) {
  if (!descriptor || __atomic_sub_fetch(&descriptor->references, 1, __ATOMIC_ACQ_REL)) return;
  while (descriptor->attributes) {
    struct attribute *first = descriptor->attributes;
    descriptor->attributes = first->next;
    clear(first);
    free(first);
  }
  free(descriptor);
}

static struct dnn_descriptor *create(int kind) {
  struct dnn_descriptor *made = calloc(1, sizeof *made);
  if (made) *made = (struct dnn_descriptor){.kind = kind, .references = 1};
  return made;
}

static int set(struct dnn_descriptor *descriptor, int name, int type, size_t n,
               const void *elements) {
  const size_t bytes = n * element_size(type);
  void *copy = malloc(bytes ? bytes : 1);
  struct attribute *attribute = attribute_of(descriptor, name);
  if (copy && !attribute && (attribute = calloc(1, sizeof *attribute))) {
    attribute->next = descriptor->attributes;
    descriptor->attributes = attribute;
  }
  if (!copy || !attribute) {
    free(copy);
    return DNN_ALLOC_FAILED;
  }
  if (bytes) memcpy(copy, elements, bytes);
  if (type == IS_DESCRIPTOR)
    for (size_t i = 0; i < n; i++) retain(((struct dnn_descriptor **)copy)[i]);
  clear(attribute);
  attribute->name = name;
  attribute->type = type;
  attribute->n = n;
  attribute->elements = copy;
  return DNN_SUCCESS;
}

/* Give `to` the attributes of `from`: a program reads a descriptor into one that it passes in. */
static int assign(struct dnn_descriptor *to, const struct dnn_descriptor *from) {
  if (!to || to->kind != from->kind) return DNN_BAD_PARAM;
  for (const struct attribute *each = from->attributes; each; each = each->next) {
    const int status = set(to, each->name, each->type, each->n, each->elements);
    if (status) return status;
  }
  to->is_finalized = from->is_finalized;
  return DNN_SUCCESS;
}

/* --- functions for laws ---------------------------------------------------------------------- */

size_t dnn_operations(const struct dnn_descriptor *graph) {
  const struct attribute *operations = attribute_of(graph, DNN_GRAPH_OPERATIONS);
  return operations ? operations->n : 0;
}

const struct dnn_descriptor *dnn_operation(const struct dnn_descriptor *graph, size_t i) {
  const struct attribute *operations = attribute_of(graph, DNN_GRAPH_OPERATIONS);
  return operations && i < operations->n ? ((struct dnn_descriptor **)operations->elements)[i]
                                         : NULL;
}

const struct dnn_descriptor *dnn_first(const struct dnn_descriptor *graph, enum dnn_kind kind) {
  for (size_t i = 0; i < dnn_operations(graph); i++)
    if (dnn_kind_of(dnn_operation(graph, i)) == (int)kind) return dnn_operation(graph, i);
  return NULL;
}

int dnn_kind_of(const struct dnn_descriptor *descriptor) {
  return descriptor ? descriptor->kind : -1;
}

static struct dnn_descriptor *child(const struct dnn_descriptor *descriptor, int name) {
  const struct attribute *found = attribute_of(descriptor, name);
  return found && found->type == IS_DESCRIPTOR && found->n
             ? *(struct dnn_descriptor **)found->elements
             : NULL;
}

const struct dnn_descriptor *dnn_child(const struct dnn_descriptor *descriptor, int attribute) {
  return child(descriptor, attribute);
}

size_t dnn_integers(const struct dnn_descriptor *descriptor, int attribute, int64_t *out,
                    size_t most) {
  const struct attribute *found = attribute_of(descriptor, attribute);
  if (!found || found->type != IS_INT64) return 0;
  const size_t n = found->n < most ? found->n : most;
  memcpy(out, found->elements, n * sizeof *out);
  return n;
}

int dnn_tensor_of(const struct dnn_descriptor *operation, int attribute, struct dnn_tensor *out) {
  const struct dnn_descriptor *tensor = dnn_child(operation, attribute);
  if (dnn_kind_of(tensor) != DNN_TENSOR) return 0;
  *out = (struct dnn_tensor){.type = -1};
  dnn_integers(tensor, TENSOR_UID, &out->uid, 1);
  out->n = dnn_integers(tensor, TENSOR_SIZES, out->sizes, DNN_MOST_DIMENSIONS);
  dnn_integers(tensor, TENSOR_STRIDES, out->strides, DNN_MOST_DIMENSIONS);
  const struct attribute *type = attribute_of(tensor, TENSOR_TYPE);
  if (type && type->n) memcpy(&out->type, type->elements, sizeof out->type);
  const struct attribute *is_virtual = attribute_of(tensor, TENSOR_IS_VIRTUAL);
  out->is_virtual = is_virtual && is_virtual->n && *(const char *)is_virtual->elements;
  return 1;
}

int dnn_each_attribute(const struct dnn_descriptor *descriptor, dnn_visit *visit, void *context) {
  const struct attribute *each = descriptor ? descriptor->attributes : NULL;
  for (; each; each = each->next)
    if (!visit(context, each->name, each->type, each->n, each->elements)) return 0;
  return 1;
}

size_t dnn_bytes(int type) {
  switch (type) {
    case DNN_DOUBLE:
    case DNN_INT64:
      return 8;
    case DNN_FLOAT:
    case DNN_INT32:
      return 4;
    case DNN_HALF:
    case DNN_BFLOAT16:
      return 2;
    case DNN_INT8:
    case DNN_UINT8:
    case DNN_BOOLEAN:
      return 1;
    default:
      return 0;
  }
}

/* --- graphs, engines, plans ------------------------------------------------------------------ */

/* Return the workspace of a graph in bytes, -1 if no law knows it. */
static int64_t workspace_of(const struct dnn_descriptor *graph) {
  int64_t workspace = 0;
  for (size_t i = 0; i < sizeof laws / sizeof *laws; i++)
    if (graph && laws[i](graph, &workspace)) return workspace;
  return -1;
}

/* The graph that a descriptor was made for: heuristics, an engine, a configuration or a plan. */
static struct dnn_descriptor *graph_of(struct dnn_descriptor *descriptor) {
  switch (dnn_kind_of(descriptor)) {
    case DNN_GRAPH:
      return descriptor;
    case DNN_HEURISTICS:
      return child(descriptor, HEURISTICS_GRAPH);
    case DNN_ENGINE:
      return child(descriptor, ENGINE_GRAPH);
    case DNN_ENGINE_CONFIG:
      return graph_of(child(descriptor, CONFIG_ENGINE));
    case DNN_PLAN:
      return graph_of(child(descriptor, PLAN_CONFIG));
    default:
      return NULL;
  }
}

/* Write the one configuration that the heuristics have into the program's descriptor. */
static int configure(struct dnn_descriptor *graph, struct dnn_descriptor *out) {
  const int64_t index = 0;
  struct dnn_descriptor *engine = create(DNN_ENGINE);
  if (!engine) return DNN_ALLOC_FAILED;
  int status = set(engine, ENGINE_GRAPH, IS_DESCRIPTOR, 1, &graph);
  if (!status) status = set(engine, ENGINE_INDEX, IS_INT64, 1, &index);
  engine->is_finalized = 1;
  if (!status && dnn_kind_of(out) != DNN_ENGINE_CONFIG) status = DNN_BAD_PARAM;
  if (!status) status = set(out, CONFIG_ENGINE, IS_DESCRIPTOR, 1, &engine);
  if (!status) out->is_finalized = 1;
  release(engine);
  return status;
}

/* Upper bound of engine numbers; a program may request an engine by number. */
enum { ENGINES = 64 };

static int answer_number(int64_t value, int64_t wanted, int64_t *n, void *out) {
  if (n) *n = 1;
  if (out && wanted > 0) memcpy(out, &value, sizeof value);
  return value < 0 ? DNN_NOT_SUPPORTED : DNN_SUCCESS;
}

/* --- cuDNN's functions ----------------------------------------------------------------------- */

int cudnnBackendCreateDescriptor(int kind, struct dnn_descriptor **out) {
  return (*out = create(kind)) ? DNN_SUCCESS : DNN_ALLOC_FAILED;
}

int cudnnBackendDestroyDescriptor(struct dnn_descriptor *descriptor) {
  release(descriptor);
  return DNN_SUCCESS;
}

int cudnnBackendFinalize(struct dnn_descriptor *descriptor) {
  const int needs_law = descriptor->kind == DNN_HEURISTICS || descriptor->kind == DNN_ENGINE ||
                        descriptor->kind == DNN_ENGINE_CONFIG || descriptor->kind == DNN_PLAN;
  if (needs_law && workspace_of(graph_of(descriptor)) < 0) return DNN_NOT_SUPPORTED;
  descriptor->is_finalized = 1;
  return DNN_SUCCESS;
}

int cudnnBackendSetAttribute(struct dnn_descriptor *descriptor, int name, int type, int64_t n,
                             const void *elements) {
  if (!descriptor || descriptor->is_finalized || n < 0) return DNN_BAD_PARAM;
  return set(descriptor, name, type, (size_t)n, elements);
}

int cudnnBackendGetAttribute(struct dnn_descriptor *descriptor, int name, int type, int64_t wanted,
                             int64_t *n, void *out) {
  if (!descriptor->is_finalized) return DNN_NOT_FINALIZED;
  if (name == PLAN_WORKSPACE || name == CONFIG_WORKSPACE)
    return answer_number(workspace_of(graph_of(descriptor)), wanted, n, out);
  if (name == GRAPH_ENGINES) return answer_number(ENGINES, wanted, n, out);
  if (name == CONFIG_SHARED_MEMORY) { /* int32; a program skips engines that need too much */
    if (n) *n = 1;
    if (out && wanted > 0) memset(out, 0, sizeof(int32_t));
    return DNN_SUCCESS;
  }
  if (name == HEURISTICS_RESULTS) {
    if (n) *n = 1;
    return out && wanted > 0 ? configure(graph_of(descriptor), *(struct dnn_descriptor **)out)
                             : DNN_SUCCESS;
  }
  /* An engine has no notes, knobs or layouts. */
  const struct attribute *found = attribute_of(descriptor, name);
  if (n) *n = found ? (int64_t)found->n : 0;
  if (!found || !out) return DNN_SUCCESS;
  if (found->type != type) return DNN_BAD_PARAM;
  const size_t copied = (int64_t)found->n < wanted ? found->n : (size_t)wanted;
  if (type != IS_DESCRIPTOR) {
    memcpy(out, found->elements, copied * element_size(type));
    return DNN_SUCCESS;
  }
  for (size_t i = 0; i < copied; i++) {
    struct dnn_descriptor *const from = ((struct dnn_descriptor **)found->elements)[i];
    const int status = assign(((struct dnn_descriptor **)out)[i], from);
    if (status) return status;
  }
  return DNN_SUCCESS;
}
