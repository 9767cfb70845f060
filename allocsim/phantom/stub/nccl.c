/* NCCL, as far as PyTorch calls it: a communicator of any number of ranks, of which one exists.
 *
 * Rule: every collective is one piece of work for its stream and moves nothing.  Data of other
 * ranks is zero; a broadcast leaves the data of the sending rank unchanged.  NCCL's own buffers,
 * which it allocates from the driver, are not counted.
 */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2 };

struct id {
  char bytes[128];
};
struct communicator {
  int ranks, rank;
};

#define SUCCEEDS(name) \
  int name(void) { return SUCCESS; }

static int made(struct communicator **out, int ranks, int rank) {
  if (!(*out = malloc(sizeof **out))) return SYSTEM_ERROR;
  **out = (struct communicator){ranks, rank};
  return SUCCESS;
}

const char *ncclGetErrorString(int error) { return error ? "unhandled system error" : "no error"; }
const char *ncclGetLastError(void *communicator) { (void)communicator; return ""; }
/* The version of the library that the program would use, because features depend on it. */
int ncclGetVersion(int *version) {
  int (*real)(int *) = (int (*)(int *))dlsym(RTLD_NEXT, "ncclGetVersion");
  *version = 22800;
  return real ? real(version) : SUCCESS;
}
int ncclGetUniqueId(struct id *out) {
  *out = (struct id){"allocsim phantom"};
  return SUCCESS;
}
int ncclCommGetUniqueId(struct communicator *communicator, struct id *out) {
  (void)communicator;
  return ncclGetUniqueId(out);
}
int ncclCommInitRank(struct communicator **out, int ranks, struct id id, int rank) {
  (void)id;
  return made(out, ranks, rank);
}
int ncclCommInitRankConfig(struct communicator **out, int ranks, struct id id, int rank,
                           void *config) {
  (void)id, (void)config;
  return made(out, ranks, rank);
}
int ncclCommInitRankScalable(struct communicator **out, int ranks, int rank, int count,
                             struct id *ids, void *config) {
  (void)count, (void)ids, (void)config;
  return made(out, ranks, rank);
}
/* Not supported: the size of a part of a communicator is known only with the other ranks. */
int ncclCommSplit(struct communicator *whole, int color, int key, struct communicator **out,
                  void *config) {
  (void)key, (void)config;
  *out = NULL;
  return color < 0 ? SUCCESS : made(out, whole->ranks, whole->rank);
}
int ncclCommDestroy(struct communicator *communicator) {
  free(communicator);
  return SUCCESS;
}
int ncclCommAbort(struct communicator *communicator) { return ncclCommDestroy(communicator); }
int ncclCommCount(const struct communicator *communicator, int *count) {
  *count = communicator->ranks;
  return SUCCESS;
}
int ncclCommUserRank(const struct communicator *communicator, int *rank) {
  *rank = communicator->rank;
  return SUCCESS;
}
int ncclCommGetAsyncError(struct communicator *communicator, int *error) {
  (void)communicator;
  *error = SUCCESS;
  return SUCCESS;
}
int ncclCommRegister(struct communicator *communicator, void *buffer, size_t size,
                     void **handle) {
  (void)communicator, (void)size;
  *handle = buffer;
  return SUCCESS;
}
/* vLLM uses NCCL only if the library has windows, which it then leaves out. */
int ncclCommWindowRegister(struct communicator *communicator, void *buffer, size_t size,
                           void **window, int flags) {
  (void)flags;
  return ncclCommRegister(communicator, buffer, size, window);
}
int ncclMemAlloc(void **out, size_t size) {
  *out = (void *)device_malloc(size);
  return *out ? SUCCESS : UNHANDLED_CUDA_ERROR;
}
int ncclMemFree(void *address) {
  if (!address) return SUCCESS;
  return device_release((uintptr_t)address) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}
int ncclRedOpCreatePreMulSum(int *operation, void *factor, int type, int residence,
                             struct communicator *communicator) {
  (void)factor, (void)type, (void)residence, (void)communicator;
  *operation = 5; /* the first number after NCCL's own */
  return SUCCESS;
}
SUCCEEDS(ncclCommDeregister)
SUCCEEDS(ncclCommFinalize)
SUCCEEDS(ncclCommWindowDeregister)
SUCCEEDS(ncclGroupEnd)
SUCCEEDS(ncclGroupStart)
SUCCEEDS(ncclRedOpDestroy)

/* --- collectives ----------------------------------------------------------------------------- */

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                  struct communicator *communicator, void *stream) {
  (void)from, (void)to, (void)count, (void)type, (void)operation, (void)communicator;
  device_collective((uintptr_t)stream);
  return SUCCESS;
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation,
                      struct communicator *communicator, void *stream) {
  return ncclAllReduce(from, to, count, type, operation, communicator, stream);
}
int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root,
               struct communicator *communicator, void *stream) {
  (void)root;
  return ncclAllReduce(from, to, count, type, operation, communicator, stream);
}
int ncclAllGather(const void *from, void *to, size_t count, int type,
                  struct communicator *communicator, void *stream) {
  return ncclAllReduce(from, to, count, type, 0, communicator, stream);
}
int ncclAlltoAll(const void *from, void *to, size_t count, int type,
                 struct communicator *communicator, void *stream) {
  return ncclAllReduce(from, to, count, type, 0, communicator, stream);
}
int ncclGather(const void *from, void *to, size_t count, int type, int root,
               struct communicator *communicator, void *stream) {
  (void)root;
  return ncclAllReduce(from, to, count, type, 0, communicator, stream);
}
int ncclScatter(const void *from, void *to, size_t count, int type, int root,
                struct communicator *communicator, void *stream) {
  (void)root;
  return ncclAllReduce(from, to, count, type, 0, communicator, stream);
}
int ncclSend(const void *from, size_t count, int type, int peer,
             struct communicator *communicator, void *stream) {
  (void)peer;
  return ncclAllReduce(from, NULL, count, type, 0, communicator, stream);
}
int ncclRecv(void *to, size_t count, int type, int peer, struct communicator *communicator,
             void *stream) {
  (void)peer;
  return ncclAllReduce(NULL, to, count, type, 0, communicator, stream);
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                  struct communicator *communicator, void *stream) {
  (void)from, (void)to, (void)count, (void)type, (void)root, (void)communicator;
  device_submit((uintptr_t)stream);
  return SUCCESS;
}
int ncclBcast(void *buffer, size_t count, int type, int root, struct communicator *communicator,
              void *stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}
