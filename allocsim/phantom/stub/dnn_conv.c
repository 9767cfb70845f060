/* The workspace of a convolution: forward, backward for the data, backward for the weight.
 *
 * The installed cuDNN plans for the phantom's card (dnn_installed.h).  It cannot plan three kinds of
 * kernels without a device.  This file computes their workspace by laws measured on an H200 with
 * cuDNN 9.19 (204 shapes, traces/h200/kernels.json):
 *
 *   - Hopper's kernels with clusters of blocks, whose scheduler depends on how many clusters the
 *     card runs at once.  Tiles that do not fill a last wave are split along the summed dimension;
 *     the parts are written to the workspace in float32 and added in a tree with one counter for
 *     each addition.
 *   - A convolution of 1x1 with stride 1, which is a matrix product of cuBLASLt.
 *   - Winograd's algorithm for the weight's gradient of 3x3 kernels, one image.
 *
 * Before the first two, tensors that are not channels-last, or whose channels do not fill 16 bytes,
 * are copied into the workspace.  If the installed cuDNN does not answer (before 9.8), these copies are
 * the whole estimate.
 */
#include "dnn_installed.h"

#include "device.h"

enum { HOPPER = 9 }; /* the major compute capability that was measured */
enum { SIZE_OF_FLOAT = 4, CHANNEL_BYTES = 16, COPY_BYTES = 16, TILE_K_BYTES = 128 };
enum { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };

struct convolution {
  int kind;
  int64_t element; /* bytes of an element */
  struct dnn_tensor x, w, y;
  int is_product; /* of matrices that cuBLASLt multiplies as they are */
  int is_strided;
  int n_groups;
};

/* --- the operation --------------------------------------------------------------------------- */

static const struct {
  enum dnn_kind kind;
  int convolution, x, w, y;
} attributes[] = {
    {DNN_CONVOLUTION_FORWARD, DNN_FORWARD_CONVOLUTION, DNN_FORWARD_X, DNN_FORWARD_W,
     DNN_FORWARD_Y},
    {DNN_CONVOLUTION_BACKWARD_DATA, DNN_BACKWARD_DATA_CONVOLUTION, DNN_BACKWARD_DATA_DX,
     DNN_BACKWARD_DATA_W, DNN_BACKWARD_DATA_DY},
    {DNN_CONVOLUTION_BACKWARD_FILTER, DNN_BACKWARD_FILTER_CONVOLUTION, DNN_BACKWARD_FILTER_X,
     DNN_BACKWARD_FILTER_DW, DNN_BACKWARD_FILTER_DY},
};

static int64_t spatial(const struct dnn_tensor *tensor) {
  int64_t points = 1;
  for (size_t i = 2; i < tensor->n; i++) points *= tensor->sizes[i];
  return points;
}

static int is_channels_last(const struct dnn_tensor *tensor) {
  return spatial(tensor) == 1 || tensor->sizes[1] == 1 || tensor->strides[1] == 1;
}

static int is_all(const struct dnn_descriptor *convolution, int attribute, int64_t value) {
  int64_t values[DNN_MOST_DIMENSIONS];
  const size_t n = dnn_integers(convolution, attribute, values, DNN_MOST_DIMENSIONS);
  for (size_t i = 0; i < n; i++)
    if (values[i] != value) return 0;
  return 1;
}

/* cuBLASLt's kernels read 16 bytes of channels at once.  Other kernels take several images that are
 * not channels-last and have few points: all with 49 points, few with 64. */
enum { LEAST_POINTS = 64 };
static int suits_products(const struct convolution *of) {
  const int64_t step = CHANNEL_BYTES / of->element;
  if (!is_channels_last(&of->x)) return of->x.sizes[0] == 1 || spatial(&of->x) >= LEAST_POINTS;
  return step < 2 || (of->x.sizes[1] % step == 0 && of->y.sizes[1] % step == 0);
}

static int read_convolution(const struct dnn_descriptor *graph, struct convolution *out) {
  for (int kind = FORWARD; kind <= BACKWARD_FILTER; kind++) {
    const struct dnn_descriptor *operation = dnn_first(graph, attributes[kind].kind);
    if (!operation) continue;
    if (!dnn_tensor_of(operation, attributes[kind].x, &out->x) ||
        !dnn_tensor_of(operation, attributes[kind].w, &out->w) ||
        !dnn_tensor_of(operation, attributes[kind].y, &out->y))
      return 0;
    if (out->x.n < 3 || out->w.n != out->x.n || out->y.n != out->x.n || out->w.sizes[1] < 1)
      return 0;
    const struct dnn_descriptor *how = dnn_child(operation, attributes[kind].convolution);
    out->kind = kind;
    out->element = (int64_t)dnn_bytes(out->x.type);
    out->n_groups = (int)(out->x.sizes[1] / out->w.sizes[1]);
    out->is_strided = !is_all(how, DNN_CONVOLUTION_STRIDES, 1);
    if (out->element <= 0) return 0;
    out->is_product = spatial(&out->w) == 1 && !out->is_strided && out->n_groups == 1 &&
                      is_all(how, DNN_CONVOLUTION_PRE_PADDINGS, 0) &&
                      is_all(how, DNN_CONVOLUTION_POST_PADDINGS, 0) && suits_products(out);
    return 1;
  }
  return 0;
}

/* --- copies ---------------------------------------------------------------------------------- */

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t padded(const struct convolution *of, int64_t channels) {
  const int64_t step = CHANNEL_BYTES / of->element;
  return divide_up(channels, step > 0 ? step : 1) * (step > 0 ? step : 1);
}

/* Return the bytes of a tensor's copy, 0 if the kernel uses the tensor directly. */
static int64_t copy_of(const struct convolution *of, const struct dnn_tensor *tensor,
                       int64_t rows) {
  const int64_t channels = padded(of, tensor->sizes[1]);
  if (is_channels_last(tensor) && channels == tensor->sizes[1] && rows == tensor->sizes[0])
    return 0;
  return rows * channels * spatial(tensor) * of->element;
}

static int64_t copies(const struct convolution *of) {
  const int64_t bytes = copy_of(of, &of->x, of->x.sizes[0]) +
                        copy_of(of, &of->w, padded(of, of->w.sizes[0])) +
                        copy_of(of, &of->y, of->y.sizes[0]);
  return bytes ? bytes + COPY_BYTES : 0;
}

/* --- Hopper's kernels with clusters ---------------------------------------------------------- */

/* Counters are aligned to this many bytes, and eight more of them than additions are kept. */
enum { COUNTER_BYTES = 4, ALIGNMENT_BYTES = 127, SPARE_COUNTERS = 8, MOST_CLUSTER = 16 };

/* Rows and columns of a tile by its knob, and the cost of a split in float32 and in 16 bits: the
 * iterations along the summed dimension for each level of the tree.  The costs were fitted. */
static const struct {
  int rows, columns, cost, cost_of_half;
} tiles[] = {
    {128, 128, 16, 16}, {128, 64, 16, 48}, {0, 0, 0, 0},       {256, 128, 16, 16},
    {256, 64, 16, 16},  {64, 64, 30, 16},  {0, 0, 0, 0},       {128, 64, 16, 48},
    {64, 64, 30, 16},   {128, 128, 16, 16},
};
/* Cost of a split after full waves, and the smallest number of iterations of a part. */
enum { COST_AFTER_WAVES = 4, LEAST_ITERATIONS = 7 };

/* Return the blocks that run at once in clusters of a size, measured with 132 multiprocessors.  A
 * cluster is inside one of the card's groups of multiprocessors, whose sizes differ. */
static int64_t blocks_at_once(int64_t cluster) {
  static const int64_t measured[MOST_CLUSTER + 1] = {
      [1] = 132, [2] = 132, [3] = 117, [4] = 120, [5] = 120, [6] = 102,
      [7] = 112, [8] = 120, [9] = 117, [12] = 108, [16] = 96,
  };
  const int64_t on_h200 = cluster > MOST_CLUSTER ? 0 : measured[cluster];
  const int64_t blocks = (on_h200 ? on_h200 : 120) * device_card()->multiprocessors / 132;
  return blocks / cluster * cluster;
}

static int64_t levels_of(int64_t parts) {
  int64_t levels = 0;
  for (; parts > 1; parts = divide_up(parts, 2)) levels++;
  return levels;
}

static int64_t additions_of(int64_t parts) {
  int64_t additions = 0;
  while (parts > 1) additions += parts = divide_up(parts, 2);
  return additions;
}

/* Return the number of parts of a tile with the shortest total time, the smallest on a tie. */
static int64_t parts_of(int64_t iterations, int64_t most, int64_t cost) {
  int64_t best = 1, least = iterations;
  for (int64_t parts = 2; parts <= most && parts * LEAST_ITERATIONS <= iterations; parts++) {
    const int64_t time = divide_up(iterations, parts) + cost * levels_of(parts);
    if (time < least) best = parts, least = time;
  }
  return best;
}

struct product {
  int64_t rows, columns, summed;
};

static struct product product_of(const struct convolution *of) {
  const int64_t kernel = spatial(&of->w);
  const int64_t n = of->x.sizes[0], x_channels = of->x.sizes[1], y_channels = of->y.sizes[1];
  const int64_t x_points = n * spatial(&of->x), y_points = n * spatial(&of->y);
  switch (of->kind) {
    case FORWARD:
      return (struct product){y_points, y_channels, x_channels * kernel};
    case BACKWARD_DATA:
      return (struct product){x_points, x_channels, y_channels * kernel};
    default:
      return (struct product){y_channels, x_channels * kernel, y_points};
  }
}

/* Return the bytes of the scheduler, -1 for a configuration of another kind. */
static int64_t scheduler(const struct convolution *of, const struct dnn_choice *choice) {
  const int64_t tile = dnn_knob_of(choice, DNN_KNOB_TILE);
  const int64_t has_none = dnn_knob_of(choice, DNN_KNOB_WORKSPACE);
  const int64_t m = dnn_knob_of(choice, DNN_KNOB_CLUSTER_M);
  const int64_t n = dnn_knob_of(choice, DNN_KNOB_CLUSTER_N);
  if (of->n_groups != 1 || (of->kind == BACKWARD_DATA && of->is_strided)) return -1;
  if (tile < 0 || tile >= (int64_t)(sizeof tiles / sizeof *tiles) || !tiles[tile].rows ||
      has_none < 0 || m < 1 || n < 1)
    return -1;
  const struct product product = product_of(of);
  const int64_t all = divide_up(divide_up(product.rows, tiles[tile].rows), m) * m *
                      divide_up(divide_up(product.columns, tiles[tile].columns), n) * n;
  const int64_t at_once = blocks_at_once(m * n);
  if (at_once < 1) return -1;
  const int64_t rest = all % at_once;
  const int64_t iterations = divide_up(product.summed, TILE_K_BYTES / of->element);
  const int is_half = of->element < SIZE_OF_FLOAT;
  const int64_t full_cost = is_half ? tiles[tile].cost_of_half : tiles[tile].cost;
  const int64_t cost = all > at_once ? COST_AFTER_WAVES : full_cost;
  const int64_t parts = has_none || !rest ? 1 : parts_of(iterations, at_once / rest, cost);
  int64_t bytes = 0;
  if (parts > 1)
    bytes += parts * rest * tiles[tile].rows * tiles[tile].columns * SIZE_OF_FLOAT +
             (rest * additions_of(parts) + SPARE_COUNTERS) * COUNTER_BYTES;
  if (all > 2 * at_once) bytes += COUNTER_BYTES; /* a counter of waves, from the third wave */
  return bytes ? bytes + ALIGNMENT_BYTES : 0;
}

/* --- 1x1 ------------------------------------------------------------------------------------- */

/* Parts of a product in float32, which are then summed.  All constants were fitted. */
enum { LT_BYTES = 256, LT_LONG = 128, LT_SHORT = 64, LT_MOST_NARROW = 4, LT_LEAST_PARTS = 4 };

/* Return the workspace of one image in float32, where the summed channels are split. */
static int64_t image_workspace(const struct convolution *of) {
  enum { LENGTH = 64, LEAST = 512, MOST_PARTS = 20 };
  const struct product product = product_of(of);
  if (of->element != SIZE_OF_FLOAT || of->x.sizes[0] != 1 || is_channels_last(&of->x)) return 0;
  if (product.summed < LEAST) return 0;
  const int64_t wanted = divide_up(product.summed, LENGTH);
  const int64_t parts = wanted < MOST_PARTS ? wanted : MOST_PARTS;
  return parts * product.rows * product.columns * SIZE_OF_FLOAT + LT_BYTES;
}

/* Return the number of tiles of a product.  In float32 the long side of a tile is along the long
 * side of the product; with many tiles, the other side is equally long. */
static int64_t lt_tiles(const struct product *product, int is_float) {
  const int is_wide = is_float && product->columns > product->rows;
  const int64_t length = is_wide ? product->columns : product->rows;
  const int64_t width = is_wide ? product->rows : product->columns;
  const int64_t tiles = divide_up(length, LT_LONG) * divide_up(width, LT_SHORT);
  if (!is_float || tiles <= LT_MOST_NARROW) return tiles;
  return divide_up(length, LT_LONG) * divide_up(width, LT_LONG);
}

/* Return the parts of a sum in float32, each rounded up to a multiple of 16 bytes. */
static int64_t aligned_parts(int64_t summed, int64_t wanted) {
  enum { STEP = CHANNEL_BYTES / SIZE_OF_FLOAT };
  if (wanted < 1) return 0;
  return divide_up(summed, divide_up(divide_up(summed, wanted), STEP) * STEP);
}

/* Return the workspace of the weight's gradient: one part per image or, if the images are adjacent
 * in memory, enough parts to keep the card busy. */
static int64_t filter_workspace(const struct convolution *of) {
  const struct product product = product_of(of);
  const int64_t weight = product.rows * product.columns * SIZE_OF_FLOAT;
  const int is_float = of->element == SIZE_OF_FLOAT;
  const int64_t images = of->x.sizes[0];
  const int is_split = is_channels_last(&of->x) || (is_float && images == 1);
  const int64_t n_tiles = lt_tiles(&product, is_float);
  const int64_t length = divide_up(product.summed, is_float ? 96 : 1344);
  const int64_t busy = (is_float ? 264 : 150) * device_card()->multiprocessors / 132 / n_tiles;
  const int64_t wanted = length < busy ? length : busy;
  const int64_t parts = is_float ? aligned_parts(product.summed, wanted) : wanted;
  if (!is_split || (parts < LT_LEAST_PARTS && !is_channels_last(&of->x))) return images * weight;
  if (parts < LT_LEAST_PARTS) return 0;
  return parts * weight + LT_BYTES + (is_float ? 0 : COPY_BYTES);
}

static int64_t product_workspace(const struct convolution *of) {
  return of->kind == BACKWARD_FILTER ? filter_workspace(of) : image_workspace(of);
}

/* Return 1 if the parts of a weight's gradient are so large that copies for another kernel cost
 * less.  Measured: 1.04 times the copies was kept, 1.74 times was not. */
static int has_costly_parts(const struct convolution *of) {
  return of->kind == BACKWARD_FILTER && !is_channels_last(&of->x) && of->x.sizes[0] > 1 &&
         2 * product_workspace(of) > 3 * copies(of);
}

/* --- Winograd's algorithm -------------------------------------------------------------------- */

/* Bytes of the transformed weight, input and gradient: 36 values in float32 for each pair of channels
 * and for each channel of a tile of 4x4 points.  0 where cuDNN takes another kernel.  The limits are
 * between the shapes that used it on the card (64 channels and more, up to 11.8 MB in float32 and
 * 4.2 MB in 16 bits) and those that did not (4 channels; 25.9 MB in float32, 11.8 MB in 16 bits). */
static int64_t winograd_workspace(const struct convolution *of) {
  enum { KERNEL = 3, TILE = 4, VALUES = 36, LEAST_CHANNELS = 64, MOST_BYTES = 4 << 20 };
  if (of->kind != BACKWARD_FILTER || of->element > SIZE_OF_FLOAT || of->x.n != 4) return 0;
  if (of->w.sizes[2] != KERNEL || of->w.sizes[3] != KERNEL || of->is_strided) return 0;
  if (of->n_groups != 1 || of->x.sizes[0] != 1 || is_channels_last(&of->x)) return 0;
  if (of->x.sizes[2] != of->y.sizes[2] || of->x.sizes[3] != of->y.sizes[3]) return 0;
  const int64_t from = of->x.sizes[1], to = of->y.sizes[1];
  const int64_t tiles = divide_up(of->y.sizes[2], TILE) * divide_up(of->y.sizes[3], TILE);
  const int64_t bytes = VALUES * SIZE_OF_FLOAT * (from * to + tiles * (from + to));
  const int is_used = from >= LEAST_CHANNELS && to >= LEAST_CHANNELS &&
                      bytes <= MOST_BYTES * of->element;
  return is_used ? bytes : 0;
}

/* --- the law --------------------------------------------------------------------------------- */

static int64_t workspace_of(const struct convolution *of, const struct dnn_choice *choice) {
  if (of->is_product && !has_costly_parts(of)) return product_workspace(of);
  const int64_t of_winograd = winograd_workspace(of);
  if (of_winograd) return of_winograd;
  if (!choice) return of->n_groups == 1 ? copies(of) : 0;
  const int64_t of_scheduler = scheduler(of, choice);
  return of_scheduler < 0 ? choice->workspace : copies(of) + of_scheduler;
}

int dnn_convolution_workspace(const struct dnn_descriptor *graph, int64_t *workspace) {
  struct convolution convolution;
  struct dnn_choice choice = {0};
  if (!read_convolution(graph, &convolution)) return 0;
  const int is_answered = dnn_installed_choice(graph, &choice);
  if (!is_answered || device_card()->major != HOPPER) device_note_guess("cuDNN");
  *workspace = workspace_of(&convolution, is_answered ? &choice : NULL);
  return 1;
}
