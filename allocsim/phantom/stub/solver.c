/* cuSOLVER, as far as PyTorch calls it: every routine succeeds and computes nothing.
 *
 * Rule: a routine's workspace is the smallest that LAPACK allows for the same routine.  A real GPU
 * takes more, depending on the card and the release, so each workspace is noted as a guess.
 *
 * Routines that only succeed are declared without arguments, because they read none.
 */
#include "device.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { SUCCESS = 0, ALLOC_FAILED = 2 };

#define SUCCEEDS(name) \
  int name(void) { return SUCCESS; }
#define EACH(macro, routine) \
  macro(cusolverDnS##routine) macro(cusolverDnD##routine) \
  macro(cusolverDnC##routine) macro(cusolverDnZ##routine)
/* Some routines have different names for real and complex matrices. */
#define EACH_NAMED(macro, real, complex) \
  macro(cusolverDnS##real) macro(cusolverDnD##real) \
  macro(cusolverDnC##complex) macro(cusolverDnZ##complex)

static int made(void **handle) { return (*handle = malloc(1)) ? SUCCESS : ALLOC_FAILED; }
static int gone(void *handle) { free(handle); return SUCCESS; }

int cusolverDnCreate(void **handle) { return made(handle); }
int cusolverDnDestroy(void *handle) { return gone(handle); }
int cusolverDnCreateGesvdjInfo(void **info) { return made(info); }
int cusolverDnDestroyGesvdjInfo(void *info) { return gone(info); }
int cusolverDnCreateParams(void **params) { return made(params); }
int cusolverDnDestroyParams(void *params) { return gone(params); }
SUCCEEDS(cusolverDnSetStream)
SUCCEEDS(cusolverDnXgesvdjSetMaxSweeps)
SUCCEEDS(cusolverDnXgesvdjSetSortEig)
SUCCEEDS(cusolverDnXgesvdjSetTolerance)

EACH(SUCCEEDS, geqrf)
EACH(SUCCEEDS, gesvd)
EACH(SUCCEEDS, gesvdaStridedBatched)
EACH(SUCCEEDS, gesvdj)
EACH(SUCCEEDS, gesvdjBatched)
EACH(SUCCEEDS, getrf)
EACH(SUCCEEDS, getrs)
EACH(SUCCEEDS, potrf)
EACH(SUCCEEDS, potrfBatched)
EACH(SUCCEEDS, potri)
EACH(SUCCEEDS, potrs)
EACH(SUCCEEDS, potrsBatched)
EACH(SUCCEEDS, sytrf)
EACH_NAMED(SUCCEEDS, orgqr, ungqr)
EACH_NAMED(SUCCEEDS, ormqr, unmqr)
EACH_NAMED(SUCCEEDS, syevd, heevd)
EACH_NAMED(SUCCEEDS, syevj, heevj)
EACH_NAMED(SUCCEEDS, syevjBatched, heevjBatched)
SUCCEEDS(cusolverDnXgeev)
SUCCEEDS(cusolverDnXgeqrf)
SUCCEEDS(cusolverDnXpotrf)
SUCCEEDS(cusolverDnXpotrs)
SUCCEEDS(cusolverDnXsyevBatched)
SUCCEEDS(cusolverDnXsyevd)
SUCCEEDS(cusolverDnXsytrs)

/* --- workspaces, in elements ----------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* LAPACK's xSYEVD with vectors; eigenvalues alone need 2n + 1. */
static int64_t of_syevd(int vectors, int64_t n) {
  return vectors ? 1 + 6 * n + 2 * n * n : 2 * n + 1;
}
static int64_t of_gesvd(int64_t m, int64_t n) {
  return most(3 * least(m, n) + most(m, n), 5 * least(m, n));
}

static int tell(int *out, int64_t elements) {
  device_note_guess("cuSOLVER");
  *out = (int)least(most(elements, 1), INT_MAX);
  return SUCCESS;
}

#define SIZE_POTRF(name)                                                            \
  int name##_bufferSize(void *h, int uplo, int n, void *a, int lda, int *out) {     \
    (void)h, (void)uplo, (void)a, (void)lda;                                        \
    return tell(out, n);                                                            \
  }
#define SIZE_MATRIX(name)                                                           \
  int name##_bufferSize(void *h, int m, int n, void *a, int lda, int *out) {        \
    (void)h, (void)a, (void)lda;                                                    \
    return tell(out, most(m, n));                                                   \
  }
#define SIZE_SYTRF(name)                                                            \
  int name##_bufferSize(void *h, int n, void *a, int lda, int *out) {               \
    (void)h, (void)a, (void)lda;                                                    \
    return tell(out, n);                                                            \
  }
#define SIZE_ORGQR(name)                                                            \
  int name##_bufferSize(void *h, int m, int n, int k, void *a, int lda, void *tau,  \
                        int *out) {                                                 \
    (void)h, (void)m, (void)k, (void)a, (void)lda, (void)tau;                       \
    return tell(out, n);                                                            \
  }
#define SIZE_ORMQR(name)                                                            \
  int name##_bufferSize(void *h, int side, int trans, int m, int n, int k, void *a, \
                        int lda, void *tau, void *c, int ldc, int *out) {           \
    (void)h, (void)trans, (void)k, (void)a, (void)lda, (void)tau, (void)c, (void)ldc; \
    return tell(out, side == 0 ? n : m);                                            \
  }
#define SIZE_SYEVD(name)                                                            \
  int name##_bufferSize(void *h, int jobz, int uplo, int n, void *a, int lda, void *w, \
                        int *out) {                                                 \
    (void)h, (void)uplo, (void)a, (void)lda, (void)w;                               \
    return tell(out, of_syevd(jobz, n));                                            \
  }
#define SIZE_SYEVJ_BATCHED(name)                                                    \
  int name##_bufferSize(void *h, int jobz, int uplo, int n, void *a, int lda, void *w, \
                        int *out, void *params, int batch) {                        \
    (void)h, (void)jobz, (void)uplo, (void)a, (void)lda, (void)w, (void)params;     \
    return tell(out, (int64_t)n * batch);                                           \
  }
#define SIZE_GESVD(name)                                                            \
  int name##_bufferSize(void *h, int m, int n, int *out) {                          \
    (void)h;                                                                        \
    return tell(out, of_gesvd(m, n));                                               \
  }
#define SIZE_GESVDJ(name)                                                           \
  int name##_bufferSize(void *h, int jobz, int economic, int m, int n, void *a, int lda, \
                        void *s, void *u, int ldu, void *v, int ldv, int *out) {    \
    (void)h, (void)jobz, (void)economic, (void)a, (void)lda, (void)s, (void)u, (void)ldu; \
    (void)v, (void)ldv;                                                             \
    return tell(out, m + (int64_t)n);                                               \
  }
#define SIZE_GESVDJ_BATCHED(name)                                                   \
  int name##_bufferSize(void *h, int jobz, int m, int n, void *a, int lda, void *s, \
                        void *u, int ldu, void *v, int ldv, int *out, void *params, \
                        int batch) {                                                \
    (void)h, (void)jobz, (void)a, (void)lda, (void)s, (void)u, (void)ldu, (void)v;  \
    (void)ldv, (void)params;                                                        \
    return tell(out, (m + (int64_t)n) * batch);                                     \
  }
#define SIZE_GESVDA(name)                                                           \
  int name##_bufferSize(void *h, int jobz, int rank, int m, int n, void *a, int lda, \
                        long long by_a, void *s, long long by_s, void *u, int ldu,  \
                        long long by_u, void *v, int ldv, long long by_v, int *out, \
                        int batch) {                                                \
    (void)h, (void)jobz, (void)rank, (void)a, (void)lda, (void)by_a, (void)s, (void)by_s; \
    (void)u, (void)ldu, (void)by_u, (void)v, (void)ldv, (void)by_v;                 \
    return tell(out, of_gesvd(m, n) * batch);                                       \
  }
EACH(SIZE_POTRF, potrf)
EACH(SIZE_POTRF, potri)
EACH(SIZE_MATRIX, getrf)
EACH(SIZE_MATRIX, geqrf)
EACH(SIZE_SYTRF, sytrf)
EACH(SIZE_GESVD, gesvd)
EACH(SIZE_GESVDJ, gesvdj)
EACH(SIZE_GESVDJ_BATCHED, gesvdjBatched)
EACH(SIZE_GESVDA, gesvdaStridedBatched)
EACH_NAMED(SIZE_ORGQR, orgqr, ungqr)
EACH_NAMED(SIZE_ORMQR, ormqr, unmqr)
EACH_NAMED(SIZE_SYEVD, syevd, heevd)
EACH_NAMED(SIZE_SYEVD, syevj, heevj)
EACH_NAMED(SIZE_SYEVJ_BATCHED, syevjBatched, heevjBatched)

/* --- workspaces of the newer interface, in bytes on the device and on the host ---------------- */

/* Bytes of an element, by cudaDataType. */
static int64_t width(int type) {
  switch (type) {
    case 0: return 4;  /* float */
    case 1: return 8;  /* double */
    case 4: return 8;  /* complex float */
    default: return 16;
  }
}

static int tell_bytes(size_t *device, size_t *host, int64_t elements, int type) {
  device_note_guess("cuSOLVER");
  *device = (size_t)(most(elements, 1) * width(type));
  *host = 0;
  return SUCCESS;
}

int cusolverDnXgeqrf_bufferSize(void *h, void *params, int64_t m, int64_t n, int type, void *a,
                                int64_t lda, int type_tau, void *tau, int computed,
                                size_t *device, size_t *host) {
  (void)h, (void)params, (void)a, (void)lda, (void)type_tau, (void)tau, (void)computed;
  return tell_bytes(device, host, most(m, n), type);
}
int cusolverDnXpotrf_bufferSize(void *h, void *params, int uplo, int64_t n, int type, void *a,
                                int64_t lda, int computed, size_t *device, size_t *host) {
  (void)h, (void)params, (void)uplo, (void)a, (void)lda, (void)computed;
  return tell_bytes(device, host, n, type);
}
int cusolverDnXsyevd_bufferSize(void *h, void *params, int jobz, int uplo, int64_t n, int type,
                                void *a, int64_t lda, int type_w, void *w, int computed,
                                size_t *device, size_t *host) {
  (void)h, (void)params, (void)uplo, (void)a, (void)lda, (void)type_w, (void)w, (void)computed;
  return tell_bytes(device, host, of_syevd(jobz, n), type);
}
int cusolverDnXsyevBatched_bufferSize(void *h, void *params, int jobz, int uplo, int64_t n,
                                      int type, void *a, int64_t lda, int type_w, void *w,
                                      int computed, size_t *device, size_t *host,
                                      int64_t batch) {
  (void)h, (void)params, (void)jobz, (void)uplo, (void)a, (void)lda, (void)type_w, (void)w;
  (void)computed;
  return tell_bytes(device, host, n * batch, type);
}
int cusolverDnXsytrs_bufferSize(void *h, int uplo, int64_t n, int64_t columns, int type, void *a,
                                int64_t lda, void *pivots, int type_b, void *b, int64_t ldb,
                                size_t *device, size_t *host) {
  (void)h, (void)uplo, (void)columns, (void)a, (void)lda, (void)pivots, (void)type_b, (void)b;
  (void)ldb;
  return tell_bytes(device, host, n, type);
}
int cusolverDnXgeev_bufferSize(void *h, void *params, int left, int right, int64_t n, int type,
                               void *a, int64_t lda, int type_w, void *w, int type_l, void *l,
                               int64_t ldl, int type_r, void *r, int64_t ldr, int computed,
                               size_t *device, size_t *host) {
  (void)h, (void)params, (void)left, (void)right, (void)a, (void)lda, (void)type_w, (void)w;
  (void)type_l, (void)l, (void)ldl, (void)type_r, (void)r, (void)ldr, (void)computed;
  return tell_bytes(device, host, 4 * n, type);
}
