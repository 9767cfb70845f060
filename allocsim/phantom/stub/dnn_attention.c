/* The workspace of cuDNN's attention, as measured on an H200 with cuDNN 9.19.
 *
 * PyTorch describes scaled dot product attention either as one operation or as the matrix products,
 * reductions and pointwise operations that it consists of: two products forward, five backward.
 * A plan needs 256 bytes in both directions.  The float32 sums of the backward pass (the gradient
 * of the query and the row sums) are not part of the plan: the copy of cudnn-frontend in PyTorch
 * describes them as separate tensors and adds them to the workspace.  If several heads of the query
 * share one head of the keys and values, the plan also holds the gradients of keys and values for
 * every head of the query, which are then summed.
 *
 * Decoding, one query for each sequence, splits the keys: every part writes its output and two
 * values per row in float32, and the results are combined.  A decoding step that is not split needs
 * no workspace.  The number of parts is a power of two.  It was 1 with 147 to 153 keys, 4 with 777
 * to 932 keys and 16 with 3,001 to 3,064 keys, both for 16 and for 128 rows, which agrees with at
 * most 256 keys per part.  Lengths of exactly 256, 512, 1,024... keys were not measured.
 * On cards of another compute capability the workspace is noted as a guess.
 */
#include "dnn_backend.h"

#include "device.h"

enum { HOPPER = 9 }; /* the major compute capability that was measured */
enum { PRODUCTS_FORWARD = 2, PRODUCTS_BACKWARD = 5 };
enum { PLAN_BYTES = 256, SPLIT_BYTES = 128, MOST_KEYS_OF_PART = 256, SIZE_OF_FLOAT = 4 };

/* The sizes that decide the workspace of a forward pass. */
struct attention {
  int64_t rows;    /* batch × heads × queries */
  int64_t queries; /* of one head */
  int64_t keys;
  int64_t values; /* of one row of the output */
};

/* Read the output's and the keys' sizes: a tensor is batch, heads, length, values. */
static int read_forward(const struct dnn_descriptor *graph, struct attention *out) {
  struct dnn_tensor keys, output;
  const struct dnn_descriptor *whole = dnn_first(graph, DNN_SDPA_FORWARD);
  const struct dnn_descriptor *last = dnn_operation(graph, dnn_operations(graph) - 1);
  const struct dnn_descriptor *scores = dnn_first(graph, DNN_MATMUL);
  const int found = whole ? dnn_tensor_of(whole, DNN_SDPA_FORWARD_K, &keys) &&
                                dnn_tensor_of(whole, DNN_SDPA_FORWARD_O, &output)
                          : dnn_tensor_of(scores, DNN_MATMUL_B, &keys) &&
                                dnn_tensor_of(last, DNN_MATMUL_C, &output);
  if (!found || keys.n != 4 || output.n != 4) return 0;
  *out = (struct attention){
      .rows = output.sizes[0] * output.sizes[1] * output.sizes[2],
      .queries = output.sizes[2],
      .keys = whole ? keys.sizes[2] : keys.sizes[3], /* the product takes them transposed */
      .values = output.sizes[3],
  };
  return 1;
}

static int64_t forward_workspace(const struct attention *attention) {
  if (attention->queries != 1) return PLAN_BYTES;
  int64_t parts = 1;
  while (parts * MOST_KEYS_OF_PART < attention->keys) parts *= 2;
  if (parts == 1) return 0;
  return parts * attention->rows * (attention->values + 2) * SIZE_OF_FLOAT + SPLIT_BYTES;
}

/* Bytes of the gradients that an operation sums over the heads that share keys or values. */
static int64_t summed_heads(const struct dnn_descriptor *operation) {
  struct dnn_tensor from, to;
  if (dnn_kind_of(operation) != DNN_REDUCTION ||
      !dnn_tensor_of(operation, DNN_REDUCTION_X, &from) ||
      !dnn_tensor_of(operation, DNN_REDUCTION_Y, &to))
    return 0;
  if (from.n != 4 || to.n != 4 || to.sizes[1] >= from.sizes[1]) return 0;
  int64_t bytes = (int64_t)dnn_bytes(from.type);
  for (size_t i = 0; i < from.n; i++) bytes *= from.sizes[i];
  return bytes;
}

static int find_workspace(const struct dnn_descriptor *graph, int64_t *workspace) {
  size_t n_products = 0;
  for (size_t i = 0; i < dnn_operations(graph); i++)
    n_products += dnn_kind_of(dnn_operation(graph, i)) == DNN_MATMUL;
  *workspace = PLAN_BYTES;
  if (n_products == PRODUCTS_BACKWARD) {
    for (size_t i = 0; i < dnn_operations(graph); i++)
      *workspace += summed_heads(dnn_operation(graph, i));
    return 1;
  }
  struct attention attention;
  const int is_forward = dnn_first(graph, DNN_SDPA_FORWARD) || n_products == PRODUCTS_FORWARD;
  if (!is_forward || !read_forward(graph, &attention)) return 0;
  *workspace = forward_workspace(&attention);
  return 1;
}

int dnn_attention_workspace(const struct dnn_descriptor *graph, int64_t *workspace) {
  if (!find_workspace(graph, workspace)) return 0;
  if (device_card()->major != HOPPER) device_note_guess("cuDNN");
  return 1;
}
