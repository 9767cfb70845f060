/* The workspace of cuDNN's attention.
 *
 * PyTorch describes scaled dot product attention either as one operation or as the matrix products,
 * reductions and pointwise operations it consists of: two products forward, five backward.  What
 * the backward pass accumulates in memory (dQ and the row sums, in float32) belongs to the program's
 * side: PyTorch adds it to the workspace of the plan, which is a constant.
 */
#include "dnn_backend.h"

enum { PRODUCTS_FORWARD = 2, PRODUCTS_BACKWARD = 5 };

/* Measured on an H200 with cuDNN 9.19, forward and backward, for all shapes but decoding. */
enum { WORKSPACE = 256 };

int dnn_attention_workspace(const struct dnn_descriptor *graph, int64_t *workspace) {
  size_t n_products = 0;
  int is_attention = dnn_first(graph, DNN_SDPA_FORWARD) || dnn_first(graph, DNN_SDPA_BACKWARD);
  for (size_t i = 0; i < dnn_operations(graph); i++)
    n_products += dnn_kind_of(dnn_operation(graph, i)) == DNN_MATMUL;
  is_attention |= n_products == PRODUCTS_FORWARD || n_products == PRODUCTS_BACKWARD;
  *workspace = WORKSPACE;
  return is_attention;
}
