/* Batch norm of cuDNN's older interface: its workspace, and the tensor descriptors that it needs.
 *
 * PyTorch uses the spatial persistent mode in training if the input is channels-last.  On an
 * H200 with cuDNN 9.19 this mode takes a workspace of float32: for each 64 channels, the partial
 * sums of each block of points and one more value, and two values for each multiprocessor.  A block
 * has 64 points forward, with one value beside its 128 sums, and 96 points backward; forward takes
 * four more values.  The law gives the requests of all twelve shapes of ResNet-50 in float32 with
 * batch 64 (a100-063-cl), whose channels and points are multiples of 64.
 *
 * The other modes take no workspace, and no mode takes a reserve space.
 */
#include "device.h"

#include <stdint.h>
#include <stdlib.h>

enum { SUCCESS = 0, ALLOC_FAILED = 2, BAD_PARAM = 2000 };
enum { SPATIAL_PERSISTENT = 2, FLOAT = 0, HOPPER = 9, MOST_DIMENSIONS = 8 };
enum { CHANNELS = 64, POINTS_FORWARD = 64, POINTS_BACKWARD = 96, MORE_FORWARD = 4 };

/* --- tensor descriptors ---------------------------------------------------------------------- */

struct tensor {
  int type;
  int n;
  int sizes[MOST_DIMENSIONS];
};

int cudnnCreateTensorDescriptor(struct tensor **out) {
  return (*out = calloc(1, sizeof **out)) ? SUCCESS : ALLOC_FAILED;
}
int cudnnDestroyTensorDescriptor(struct tensor *tensor) { free(tensor); return SUCCESS; }

int cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int n, const int *sizes,
                               const int *strides) {
  (void)strides;
  if (n < 1 || n > MOST_DIMENSIONS) return BAD_PARAM;
  tensor->type = type;
  tensor->n = n;
  for (int i = 0; i < n; i++) tensor->sizes[i] = sizes[i];
  return SUCCESS;
}

/* --- workspaces ------------------------------------------------------------------------------ */

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static size_t workspace_of(int mode, const struct tensor *x, int is_forward) {
  if (mode != SPATIAL_PERSISTENT || x->n < 2) return 0;
  if (x->type != FLOAT || device_card()->major != HOPPER) device_note_guess("cuDNN");
  int64_t points = x->sizes[0];
  for (int i = 2; i < x->n; i++) points *= x->sizes[i];
  const int64_t blocks = divide_up(points, is_forward ? POINTS_FORWARD : POINTS_BACKWARD);
  const int64_t of_block = 2 * CHANNELS + (is_forward ? 1 : 0);
  const int64_t values = divide_up(x->sizes[1], CHANNELS) * (blocks * of_block + 1) +
                         2 * device_card()->multiprocessors +
                         (is_forward ? MORE_FORWARD : 0);
  return (size_t)values * sizeof(float);
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    void *handle, int mode, int operations, const struct tensor *x, void *z, void *y,
    void *parameters, void *activation, size_t *size) {
  (void)handle, (void)operations, (void)z, (void)y, (void)parameters, (void)activation;
  *size = workspace_of(mode, x, 1);
  return SUCCESS;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    void *handle, int mode, int operations, const struct tensor *x, void *y, void *dy, void *dz,
    void *dx, void *parameters, void *activation, size_t *size) {
  (void)handle, (void)operations, (void)y, (void)dy, (void)dz, (void)dx, (void)parameters;
  (void)activation;
  *size = workspace_of(mode, x, 0);
  return SUCCESS;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations,
                                                         void *activation, void *x,
                                                         size_t *size) {
  (void)handle, (void)mode, (void)operations, (void)activation, (void)x;
  *size = 0;
  return SUCCESS;
}
int cudnnBatchNormalizationBackwardEx(void) { return SUCCESS; }
int cudnnBatchNormalizationForwardInference(void) { return SUCCESS; }
int cudnnBatchNormalizationForwardTrainingEx(void) { return SUCCESS; }
