/* cuDNN's graph interface: the descriptors that a program fills, and the functions for laws.
 *
 * A program describes tensors and operations as descriptors with attributes, joins the operations
 * in an operation graph, asks the heuristics for engine configurations and makes an execution plan
 * of one.  dnn_backend.c stores the attributes and connects the descriptors.  A workspace law reads
 * the operation graph with the functions below and returns the size of the plan's workspace.
 *
 * Descriptor kinds, attribute names and data types have the numbers of NVIDIA's cudnn_graph.h.
 * This header lists those that the store and the laws use.
 *
 * To add a law for another kind of graph: write a function of type dnn_law in a file of its own,
 * declare it at the end of this header, and add it to `laws` in dnn_backend.c.
 */
#ifndef ALLOCSIM_PHANTOM_DNN_BACKEND_H
#define ALLOCSIM_PHANTOM_DNN_BACKEND_H

#include <stddef.h>
#include <stdint.h>

enum dnn_status {
  DNN_SUCCESS = 0,
  DNN_BAD_PARAM = 2000,
  DNN_NOT_FINALIZED = 2004,
  DNN_NOT_SUPPORTED = 3000,
  DNN_ALLOC_FAILED = 4003,
};

enum dnn_kind {
  DNN_CONVOLUTION = 1,
  DNN_ENGINE = 2,
  DNN_ENGINE_CONFIG = 3,
  DNN_HEURISTICS = 4,
  DNN_PLAN = 5,
  DNN_CONVOLUTION_FORWARD = 10,
  DNN_CONVOLUTION_BACKWARD_FILTER = 11,
  DNN_CONVOLUTION_BACKWARD_DATA = 12,
  DNN_POINTWISE = 13,
  DNN_GRAPH = 15,
  DNN_TENSOR = 17,
  DNN_MATMUL = 19,
  DNN_REDUCTION = 22,
  DNN_RNG = 33,
  DNN_SDPA_FORWARD = 41,
};

enum dnn_attribute {
  DNN_CONVOLUTION_DILATIONS = 102, /* int64, one for each spatial dimension */
  DNN_CONVOLUTION_STRIDES = 103,
  DNN_CONVOLUTION_POST_PADDINGS = 104,
  DNN_CONVOLUTION_PRE_PADDINGS = 105,
  DNN_FORWARD_CONVOLUTION = 702, /* the DNN_CONVOLUTION of a DNN_CONVOLUTION_FORWARD */
  DNN_FORWARD_W = 703,
  DNN_FORWARD_X = 704,
  DNN_FORWARD_Y = 705,
  DNN_BACKWARD_DATA_CONVOLUTION = 708,
  DNN_BACKWARD_DATA_W = 709,
  DNN_BACKWARD_DATA_DX = 710,
  DNN_BACKWARD_DATA_DY = 711,
  DNN_BACKWARD_FILTER_CONVOLUTION = 714,
  DNN_BACKWARD_FILTER_DW = 715,
  DNN_BACKWARD_FILTER_X = 716,
  DNN_BACKWARD_FILTER_DY = 717,
  DNN_GRAPH_OPERATIONS = 801,
  DNN_MATMUL_A = 1520,
  DNN_MATMUL_B = 1521,
  DNN_MATMUL_C = 1522,
  DNN_REDUCTION_X = 1610,
  DNN_REDUCTION_Y = 1611,
  DNN_SDPA_FORWARD_Q = 2800,
  DNN_SDPA_FORWARD_K = 2801,
  DNN_SDPA_FORWARD_V = 2802,
  DNN_SDPA_FORWARD_O = 2803,
};

enum dnn_type {
  DNN_FLOAT = 0,
  DNN_DOUBLE = 1,
  DNN_HALF = 2,
  DNN_INT8 = 3,
  DNN_INT32 = 4,
  DNN_UINT8 = 6,
  DNN_BFLOAT16 = 9,
  DNN_INT64 = 10,
  DNN_BOOLEAN = 11,
};

#define DNN_MOST_DIMENSIONS 8

/* A tensor of an operation.  `is_virtual`: it is passed between operations and is not in memory. */
struct dnn_tensor {
  int64_t uid;
  int type; /* enum dnn_type */
  int is_virtual;
  size_t n; /* dimensions */
  int64_t sizes[DNN_MOST_DIMENSIONS];
  int64_t strides[DNN_MOST_DIMENSIONS]; /* in elements */
};

/* A descriptor: a kind and attributes. */
struct dnn_descriptor;

/* The number of operations in a graph, and operation `i` of it. */
size_t dnn_operations(const struct dnn_descriptor *graph);
const struct dnn_descriptor *dnn_operation(const struct dnn_descriptor *graph, size_t i);
/* The first operation of that kind, NULL for none. */
const struct dnn_descriptor *dnn_first(const struct dnn_descriptor *graph, enum dnn_kind kind);
/* The kind of a descriptor, an enum dnn_kind or one of the other numbers of cudnn_graph.h. */
int dnn_kind_of(const struct dnn_descriptor *descriptor);
/* The descriptor under an attribute, NULL for none. */
const struct dnn_descriptor *dnn_child(const struct dnn_descriptor *descriptor, int attribute);
/* Read the tensor under an attribute of an operation; 0 for none. */
int dnn_tensor_of(const struct dnn_descriptor *operation, int attribute, struct dnn_tensor *out);
/* Read at most `most` int64 values of an attribute; return their number. */
size_t dnn_integers(const struct dnn_descriptor *descriptor, int attribute, int64_t *out,
                    size_t most);
/* Call `visit` for every attribute until it returns 0.  Return 0 if it did, else 1. */
typedef int dnn_visit(void *context, int name, int type, size_t n, const void *elements);
int dnn_each_attribute(const struct dnn_descriptor *descriptor, dnn_visit *visit, void *context);
/* Bytes of one element of an enum dnn_type, 0 for an unknown one. */
size_t dnn_bytes(int type);

/* Compute the workspace of a graph in bytes.  Return 0 for a graph of another kind. */
typedef int dnn_law(const struct dnn_descriptor *graph, int64_t *workspace);

dnn_law dnn_attention_workspace; /* dnn_attention.c */
dnn_law dnn_convolution_workspace; /* dnn_conv.c */

#endif
