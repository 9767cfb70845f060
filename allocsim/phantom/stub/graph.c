/* Graphs of libcudart.so.N: a capture counts its work, and a launch is one piece of work.
 *
 * This is enough for PyTorch's private pools.  It is tracked exactly which streams belong to which
 * capture.  Nodes are not stored, so calls that edit or inspect nodes are not supported.
 */
#include "cudart.h"

#include <stdlib.h>

struct graph {
  uint64_t capture;
  uint64_t nodes;
  int has_collectives;
};

/* Counts of the stream when its capture began; PyTorch allows one capture at a time. */
static uint64_t submitted_before, collectives_before;

int cudaStreamBeginCapture(void *stream, int mode) {
  (void)mode;
  device_capture_begin((uintptr_t)stream);
  submitted_before = device_stream((uintptr_t)stream)->submitted;
  collectives_before = device_stream((uintptr_t)stream)->collectives;
  return SUCCESS;
}
int cudaStreamEndCapture(void *handle, struct graph **out) {
  struct device_stream *stream = device_stream((uintptr_t)handle);
  if (!stream->capture) return answer(INVALID_VALUE);
  if (!(*out = malloc(sizeof **out))) return answer(MEMORY_ALLOCATION);
  (*out)->capture = stream->capture;
  (*out)->nodes = stream->submitted - submitted_before;
  (*out)->has_collectives = stream->collectives > collectives_before;
  device_capture_end(stream->capture);
  return SUCCESS;
}

int cudaStreamIsCapturing(void *stream, int *status) {
  *status = device_stream((uintptr_t)stream)->capture != 0;
  return SUCCESS;
}

static int capture_info(void *handle, int *status, unsigned long long *id, void **graph,
                        const void **dependencies, size_t *count) {
  const uint64_t capture = device_stream((uintptr_t)handle)->capture;
  *status = capture != 0;
  if (id) *id = capture;
  if (graph) *graph = NULL;
  if (dependencies) *dependencies = NULL;
  if (count) *count = 0;
  return SUCCESS;
}
#if PHANTOM_CUDA >= 13
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph,
                             const void **dependencies, const void **edges, size_t *count) {
  if (edges) *edges = NULL;
  return capture_info(stream, status, id, graph, dependencies, count);
}
#else
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id) {
  return capture_info(stream, status, id, NULL, NULL, NULL);
}
#endif
int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                const void **dependencies, size_t *count) {
  return capture_info(stream, status, id, graph, dependencies, count);
}
int cudaStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id, void **graph,
                                const void **dependencies, const void **edges, size_t *count) {
  if (edges) *edges = NULL;
  return capture_info(stream, status, id, graph, dependencies, count);
}

int cudaGraphGetNodes(struct graph *graph, void **nodes, size_t *count) {
  (void)nodes;
  *count = graph->nodes;
  return SUCCESS;
}
int cudaGraphInstantiate(struct graph **out, struct graph *graph) {
  if (device_hold_graph(graph->nodes, graph->has_collectives)) return answer(MEMORY_ALLOCATION);
  if (!(*out = malloc(sizeof **out))) return answer(MEMORY_ALLOCATION);
  **out = *graph;
  return SUCCESS;
}
int cudaGraphInstantiateWithFlags(struct graph **out, struct graph *graph, unsigned long long flags) {
  (void)flags;
  return cudaGraphInstantiate(out, graph);
}
int cudaGraphLaunch(void *executable, void *stream) {
  (void)executable;
  device_launch((uintptr_t)stream);
  return SUCCESS;
}
int cudaGraphDestroy(void *graph) { free(graph); return SUCCESS; }
int cudaGraphExecDestroy(struct graph *executable) {
  device_drop_graph(executable->nodes, executable->has_collectives);
  free(executable);
  return SUCCESS;
}
int cudaGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags) {
  (void)graph, (void)object, (void)count, (void)flags;
  return SUCCESS;
}
/* An object owned by a graph lives as long as the process. */
int cudaUserObjectCreate(void **out, void *pointer, void (*destroy)(void *), unsigned references,
                         unsigned flags) {
  (void)destroy, (void)references, (void)flags;
  *out = pointer;
  return SUCCESS;
}
int cudaUserObjectRelease(void *object, unsigned count) {
  (void)object, (void)count;
  return SUCCESS;
}

NEVER_REACHED(cudaGraphAddEmptyNode)
NEVER_REACHED(cudaGraphAddNode)
NEVER_REACHED(cudaGraphConditionalHandleCreate)
NEVER_REACHED(cudaGraphDebugDotPrint)
NEVER_REACHED(cudaGraphNodeGetDependencies)
NEVER_REACHED(cudaGraphNodeGetDependencies_v2)
NEVER_REACHED(cudaGraphNodeGetType)
NEVER_REACHED(cudaStreamBeginCaptureToGraph)
NEVER_REACHED(cudaStreamUpdateCaptureDependencies)
