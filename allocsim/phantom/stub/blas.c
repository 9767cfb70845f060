/* cuBLAS and cuBLASLt, as far as PyTorch calls them: every routine succeeds and computes nothing.
 *
 * Rule: no routine needs a workspace of the library.  The workspaces that PyTorch allocates for
 * cuBLAS come from PyTorch's allocator and are as on any device of the same compute capability.
 * Workspaces that the heuristics of cuBLASLt would add are missing.
 *
 * Routines that only succeed are declared without arguments, because they read none.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { SUCCESS = 0, ALLOC_FAILED = 3 };

#define SUCCEEDS(name) \
  int name(void) { return SUCCESS; }

/* --- handles --------------------------------------------------------------------------------- */

/* Each handle is distinct: PyTorch keeps a workspace for each handle and stream, and creates a
 * handle for each thread that multiplies, such as autograd's. */
static int made(void **handle) {
  *handle = malloc(1);
  return *handle ? SUCCESS : ALLOC_FAILED;
}
static int gone(void *handle) {
  free(handle);
  return SUCCESS;
}

const char *cublasGetStatusString(int status) { return status ? "failed" : "success"; }
/* --- cuBLAS ---------------------------------------------------------------------------------- */

int cublasCreate_v2(void **handle) { return made(handle); }
int cublasDestroy_v2(void *handle) { return gone(handle); }
int cublasGetMathMode(void *handle, int *mode) { (void)handle; *mode = 0; return SUCCESS; }
int cublasGetPointerMode_v2(void *handle, int *mode) { (void)handle; *mode = 0; return SUCCESS; }
SUCCEEDS(cublasSetMathMode)
SUCCEEDS(cublasSetPointerMode_v2)
SUCCEEDS(cublasSetSmCountTarget)
SUCCEEDS(cublasSetStream_v2)
SUCCEEDS(cublasSetWorkspace_v2)

SUCCEEDS(cublasHgemm)
SUCCEEDS(cublasCdotc_v2)
SUCCEEDS(cublasCdotu_v2)
SUCCEEDS(cublasCgemmStridedBatched)
SUCCEEDS(cublasCgemm_v2)
SUCCEEDS(cublasCgemv_v2)
SUCCEEDS(cublasCgetrfBatched)
SUCCEEDS(cublasCtrsmBatched)
SUCCEEDS(cublasCtrsm_v2)
SUCCEEDS(cublasDdot_v2)
SUCCEEDS(cublasDgemmStridedBatched)
SUCCEEDS(cublasDgemm_v2)
SUCCEEDS(cublasDgemv_v2)
SUCCEEDS(cublasDgetrfBatched)
SUCCEEDS(cublasDotEx)
SUCCEEDS(cublasDtrsmBatched)
SUCCEEDS(cublasDtrsm_v2)
SUCCEEDS(cublasGemmEx)
SUCCEEDS(cublasGemmStridedBatchedEx)
SUCCEEDS(cublasSdot_v2)
SUCCEEDS(cublasSgemmEx)
SUCCEEDS(cublasSgemmStridedBatched)
SUCCEEDS(cublasSgemm_v2)
SUCCEEDS(cublasSgemv_v2)
SUCCEEDS(cublasSgetrfBatched)
SUCCEEDS(cublasStrsmBatched)
SUCCEEDS(cublasStrsm_v2)
SUCCEEDS(cublasZdotc_v2)
SUCCEEDS(cublasZdotu_v2)
SUCCEEDS(cublasZgemmStridedBatched)
SUCCEEDS(cublasZgemm_v2)
SUCCEEDS(cublasZgemv_v2)
SUCCEEDS(cublasZgetrfBatched)
SUCCEEDS(cublasZtrsmBatched)
SUCCEEDS(cublasZtrsm_v2)

/* Three routines that report invalid arguments to the caller, not on the device. */
#define EACH_TYPE(macro, routine) \
  macro(cublasS##routine) macro(cublasD##routine) macro(cublasC##routine) macro(cublasZ##routine)
#define GELS(name)                                                                           \
  int name(void *h, int trans, int m, int n, int columns, void *a, int lda, void *c, int ldc, \
           int *info) {                                                                      \
    (void)h, (void)trans, (void)m, (void)n, (void)columns, (void)a, (void)lda, (void)c;      \
    (void)ldc;                                                                               \
    *info = 0;                                                                               \
    return SUCCESS;                                                                          \
  }
#define GEQRF(name)                                                                          \
  int name(void *h, int m, int n, void *a, int lda, void *tau, int *info) {                  \
    (void)h, (void)m, (void)n, (void)a, (void)lda, (void)tau;                                \
    *info = 0;                                                                               \
    return SUCCESS;                                                                          \
  }
#define GETRS(name)                                                                          \
  int name(void *h, int trans, int n, int columns, void *a, int lda, void *pivots, void *b,  \
           int ldb, int *info) {                                                             \
    (void)h, (void)trans, (void)n, (void)columns, (void)a, (void)lda, (void)pivots, (void)b; \
    (void)ldb;                                                                               \
    *info = 0;                                                                               \
    return SUCCESS;                                                                          \
  }
EACH_TYPE(GELS, gelsBatched)
EACH_TYPE(GEQRF, geqrfBatched)
EACH_TYPE(GETRS, getrsBatched)

/* --- cuBLASLt -------------------------------------------------------------------------------- */

/* Descriptors are opaque to the caller, so all have the same address. */
static int the_descriptor;
static int create(void **out) { *out = &the_descriptor; return SUCCESS; }
int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
  (void)compute, (void)scale;
  return create(out);
}
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  (void)type, (void)rows, (void)columns, (void)ld;
  return create(out);
}
int cublasLtMatmulPreferenceCreate(void **out) { return create(out); }
int cublasLtCreate(void **handle) { return made(handle); }
int cublasLtDestroy(void *handle) { return gone(handle); }

struct heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

/* Return one algorithm that needs no workspace. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *matmul, void *a, void *b, void *c, void *d,
                                   void *preference, int wanted, struct heuristic *out,
                                   int *found) {
  (void)handle, (void)matmul, (void)a, (void)b, (void)c, (void)d, (void)preference;
  *found = wanted > 0;
  if (wanted > 0) *out = (struct heuristic){.state = SUCCESS, .waves = 1};
  return SUCCESS;
}
int cublasLtMatmulAlgoConfigGetAttribute(void *algorithm, int attribute, void *out, size_t size,
                                         size_t *written) {
  (void)algorithm, (void)attribute;
  for (size_t i = 0; i < size; i++) ((char *)out)[i] = 0;
  if (written) *written = size;
  return SUCCESS;
}
int cublasLtMatmulAlgoCheck(void *handle, void *matmul, void *a, void *b, void *c, void *d,
                            void *algorithm, struct heuristic *out) {
  (void)handle, (void)matmul, (void)a, (void)b, (void)c, (void)d, (void)algorithm;
  *out = (struct heuristic){.state = SUCCESS, .waves = 1};
  return SUCCESS;
}
size_t cublasLtGetVersion(void) { return 130000; }
SUCCEEDS(cublasLtMatmulAlgoInit)
SUCCEEDS(cublasLtMatmulAlgoConfigSetAttribute)
SUCCEEDS(cublasLtMatmul)
SUCCEEDS(cublasLtMatmulDescDestroy)
SUCCEEDS(cublasLtMatmulDescSetAttribute)
SUCCEEDS(cublasLtMatmulPreferenceDestroy)
SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
SUCCEEDS(cublasLtMatrixLayoutDestroy)
SUCCEEDS(cublasLtMatrixLayoutSetAttribute)
