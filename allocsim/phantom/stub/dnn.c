/* cuDNN's older interface as PyTorch calls it: convolutions, pooling, dropout.
 *
 * Every routine succeeds, computes nothing and needs no workspace; a search for an algorithm finds
 * one, implicit GEMM.  The workspace on a real card depends on the card and the shapes, so it is
 * noted as a guess.  Recurrent networks and CTC loss, which need cuDNN's own layouts, are refused.
 *
 * Batch norm is in dnn_norm.c, the graph interface in dnn_backend.c.  cudnnGetVersion is not
 * stubbed: the installed library answers it, because PyTorch chooses kernels by it.
 */
#include "device.h"

#include <stddef.h>
#include <stdlib.h>

enum { SUCCESS = 0, ALLOC_FAILED = 2, NOT_SUPPORTED = 3000 };

#define SUCCEEDS(name) \
  int name(void) { return SUCCESS; }
#define REFUSES(name) \
  int name(void) { return NOT_SUPPORTED; }

const char *cudnnGetErrorString(int status) {
  return status == SUCCESS ? "CUDNN_STATUS_SUCCESS"
                           : "CUDNN_STATUS_NOT_SUPPORTED (not offered by allocsim's phantom GPU)";
}
void cudnnGetLastErrorString(char *text, size_t size) {
  if (size) *text = 0;
}

/* Each handle is distinct, as in blas.c. */
struct handle {
  void *stream;
};
int cudnnCreate(struct handle **handle) {
  return (*handle = calloc(1, sizeof **handle)) ? SUCCESS : ALLOC_FAILED;
}
int cudnnDestroy(struct handle *handle) { free(handle); return SUCCESS; }
int cudnnSetStream(struct handle *handle, void *stream) { handle->stream = stream; return SUCCESS; }
int cudnnGetStream(struct handle *handle, void **stream) {
  *stream = handle->stream;
  return SUCCESS;
}

/* Run a plan of the graph interface (dnn_backend.c): one piece of work for the handle's stream. */
int cudnnBackendExecute(struct handle *handle, void *plan, void *variant_pack) {
  (void)plan, (void)variant_pack;
  device_launch((uintptr_t)handle->stream);
  return SUCCESS;
}

/* --- descriptors, which are empty ------------------------------------------------------------ */

static int the_descriptor;

#define CREATES(name) \
  int name(void **out) { *out = &the_descriptor; return SUCCESS; }
CREATES(cudnnCreateActivationDescriptor)
CREATES(cudnnCreateCTCLossDescriptor)
CREATES(cudnnCreateConvolutionDescriptor)
CREATES(cudnnCreateDropoutDescriptor)
CREATES(cudnnCreateFilterDescriptor)
CREATES(cudnnCreatePoolingDescriptor)
CREATES(cudnnCreateRNNDataDescriptor)
CREATES(cudnnCreateRNNDescriptor)
CREATES(cudnnCreateSpatialTransformerDescriptor)

/* --- convolutions ---------------------------------------------------------------------------- */

struct performance {
  int algorithm;
  int status;
  float time;
  size_t memory;
  int determinism;
  int math;
  int reserved[3];
};

static int choose(int wanted, int *found, struct performance *out) {
  device_note_guess("cuDNN");
  *found = wanted > 0;
  if (wanted > 0) *out = (struct performance){.algorithm = 1, .determinism = 1};
  return SUCCESS;
}

#define CHOOSES(name)                                                                       \
  int name(void *handle, void *a, void *b, void *convolution, void *c, int wanted, int *found, \
           struct performance *out) {                                                       \
    (void)handle, (void)a, (void)b, (void)convolution, (void)c;                             \
    return choose(wanted, found, out);                                                      \
  }
CHOOSES(cudnnGetConvolutionBackwardDataAlgorithm_v7)
CHOOSES(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
CHOOSES(cudnnGetConvolutionForwardAlgorithm_v7)

#define TRIES(name)                                                                         \
  int name(void *handle, void *a, void *a_data, void *b, void *b_data, void *convolution,   \
           void *c, void *c_data, int wanted, int *found, struct performance *out,          \
           void *workspace, size_t size) {                                                  \
    (void)handle, (void)a, (void)a_data, (void)b, (void)b_data, (void)convolution, (void)c; \
    (void)c_data, (void)workspace, (void)size;                                              \
    return choose(wanted, found, out);                                                      \
  }
TRIES(cudnnFindConvolutionBackwardDataAlgorithmEx)
TRIES(cudnnFindConvolutionBackwardFilterAlgorithmEx)
TRIES(cudnnFindConvolutionForwardAlgorithmEx)

#define NEEDS_NO_WORKSPACE(name)                                                            \
  int name(void *handle, void *a, void *b, void *convolution, void *c, int algorithm,       \
           size_t *size) {                                                                  \
    (void)handle, (void)a, (void)b, (void)convolution, (void)c, (void)algorithm;            \
    device_note_guess("cuDNN");                                                             \
    *size = 0;                                                                              \
    return SUCCESS;                                                                         \
  }
NEEDS_NO_WORKSPACE(cudnnGetConvolutionBackwardDataWorkspaceSize)
NEEDS_NO_WORKSPACE(cudnnGetConvolutionBackwardFilterWorkspaceSize)
NEEDS_NO_WORKSPACE(cudnnGetConvolutionForwardWorkspaceSize)

/* --- dropout --------------------------------------------------------------------------------- */

int cudnnDropoutGetStatesSize(void *handle, size_t *size) {
  (void)handle;
  *size = 0;
  return SUCCESS;
}

/* --- routines that only succeed -------------------------------------------------------------- */

SUCCEEDS(cudnnConvolutionBackwardData)
SUCCEEDS(cudnnConvolutionBackwardFilter)
SUCCEEDS(cudnnConvolutionBiasActivationForward)
SUCCEEDS(cudnnConvolutionForward)
SUCCEEDS(cudnnDestroyActivationDescriptor)
SUCCEEDS(cudnnDestroyCTCLossDescriptor)
SUCCEEDS(cudnnDestroyConvolutionDescriptor)
SUCCEEDS(cudnnDestroyDropoutDescriptor)
SUCCEEDS(cudnnDestroyFilterDescriptor)
SUCCEEDS(cudnnDestroyRNNDataDescriptor)
SUCCEEDS(cudnnDestroyRNNDescriptor)
SUCCEEDS(cudnnDestroySpatialTransformerDescriptor)
SUCCEEDS(cudnnPoolingForward)
SUCCEEDS(cudnnRestoreDropoutDescriptor)
SUCCEEDS(cudnnSetActivationDescriptor)
SUCCEEDS(cudnnSetCTCLossDescriptorEx)
SUCCEEDS(cudnnSetCTCLossDescriptor_v9)
SUCCEEDS(cudnnSetConvolutionGroupCount)
SUCCEEDS(cudnnSetConvolutionMathType)
SUCCEEDS(cudnnSetConvolutionNdDescriptor)
SUCCEEDS(cudnnSetDropoutDescriptor)
SUCCEEDS(cudnnSetFilterNdDescriptor)
SUCCEEDS(cudnnSetPooling2dDescriptor)
SUCCEEDS(cudnnSetSpatialTransformerNdDescriptor)
SUCCEEDS(cudnnSpatialTfGridGeneratorBackward)
SUCCEEDS(cudnnSpatialTfGridGeneratorForward)
SUCCEEDS(cudnnSpatialTfSamplerBackward)
SUCCEEDS(cudnnSpatialTfSamplerForward)

/* --- not supported --------------------------------------------------------------------------- */

REFUSES(cudnnCTCLoss)
REFUSES(cudnnCTCLoss_v8)
REFUSES(cudnnGetCTCLossWorkspaceSize)
REFUSES(cudnnGetCTCLossWorkspaceSize_v8)
REFUSES(cudnnGetFilterNdDescriptor)
REFUSES(cudnnGetRNNTempSpaceSizes)
REFUSES(cudnnGetRNNWeightParams)
REFUSES(cudnnGetRNNWeightSpaceSize)
REFUSES(cudnnGetTensorNdDescriptor)
REFUSES(cudnnRNNBackwardData_v8)
REFUSES(cudnnRNNBackwardWeights_v8)
REFUSES(cudnnRNNForward)
REFUSES(cudnnSetRNNDataDescriptor)
REFUSES(cudnnSetRNNDescriptor_v8)
