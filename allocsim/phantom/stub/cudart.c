/* libcudart.so.N as far as libc10_cuda.so calls it: the runtime API over device.h's books.
 *
 * Declared by hand and without CUDA's headers, so that one source serves every CUDA release
 * and compiles where no toolkit is.  Types that are only passed through are `void *`; enums
 * are `int`.  What the native allocator never reaches answers "not supported" by name.
 */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  MEMORY_ALLOCATION = 2,
  INVALID_DEVICE = 101,
  NOT_READY = 600,
  NOT_SUPPORTED = 801
};

#ifndef PHANTOM_CUDA
#define PHANTOM_CUDA 13
#endif

static int last_error;

static int answer(int error) {
  if (error) last_error = error;
  return error;
}

const char *cudaGetErrorName(int error) {
  switch (error) {
    case SUCCESS: return "cudaSuccess";
    case INVALID_VALUE: return "cudaErrorInvalidValue";
    case MEMORY_ALLOCATION: return "cudaErrorMemoryAllocation";
    case INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case NOT_READY: return "cudaErrorNotReady";
    case NOT_SUPPORTED: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}

const char *cudaGetErrorString(int error) {
  switch (error) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case MEMORY_ALLOCATION: return "out of memory";
    case INVALID_DEVICE: return "invalid device ordinal";
    case NOT_READY: return "device not ready";
    case NOT_SUPPORTED: return "operation not supported";
    default: return "unknown error";
  }
}

int cudaGetLastError(void) {
  int error = last_error;
  last_error = SUCCESS;
  return error;
}
int cudaPeekAtLastError(void) { return last_error; }

/* --- the one device ----------------------------------------------------------------------- */

int cudaGetDeviceCount(int *count) { *count = 1; return SUCCESS; }
int cudaGetDevice(int *device) { *device = 0; return SUCCESS; }
int cudaSetDevice(int device) { return answer(device == 0 ? SUCCESS : INVALID_DEVICE); }
int cudaDriverGetVersion(int *version) { *version = PHANTOM_CUDA * 1000; return SUCCESS; }
int cudaRuntimeGetVersion(int *version) { *version = PHANTOM_CUDA * 1000; return SUCCESS; }
int cudaDeviceSynchronize(void) { device_finish_all(); return SUCCESS; }
int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  (void)device, (void)peer;
  *can = 0;
  return SUCCESS;
}
int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  (void)peer, (void)flags;
  return answer(NOT_SUPPORTED);
}
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = *greatest = 0;
  return SUCCESS;
}

/* The front of cudaDeviceProp, whose layout no release from 11 to 13 changed. */
struct properties {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luid_device_node_mask;
  size_t total_global_mem;
  size_t shared_mem_per_block;
  int regs_per_block;
  int warp_size;
  size_t mem_pitch;
  int max_threads_per_block;
  int max_threads_dim[3];
  int max_grid_size[3];
  int clock_rate; /* padding from 13 on */
  size_t total_const_mem;
  int major, minor;
};

static int properties(struct properties *front) {
  memset(front, 0, sizeof *front);
  strcpy(front->name, "allocsim phantom");
  front->total_global_mem = device_capacity();
  front->shared_mem_per_block = 48 << 10;
  front->regs_per_block = 65536;
  front->warp_size = 32;
  front->max_threads_per_block = 1024;
  front->max_threads_dim[0] = front->max_threads_dim[1] = 1024;
  front->max_threads_dim[2] = 64;
  front->max_grid_size[0] = 2147483647;
  front->max_grid_size[1] = front->max_grid_size[2] = 65535;
  front->major = 8;
  return SUCCESS;
}

int cudaGetDeviceProperties(void *out, int device) {
  return device == 0 ? properties(out) : answer(INVALID_DEVICE);
}
int cudaGetDeviceProperties_v2(void *out, int device) {
  return cudaGetDeviceProperties(out, device);
}

/* --- memory ------------------------------------------------------------------------------- */

int cudaMalloc(void **out, size_t size) {
  uintptr_t address = device_malloc(size);
  *out = (void *)address;
  return answer(address ? SUCCESS : MEMORY_ALLOCATION);
}

int cudaFree(void *address) {
  if (!address) return SUCCESS;
  return answer(device_release((uintptr_t)address) ? INVALID_VALUE : SUCCESS);
}

int cudaMemGetInfo(size_t *free, size_t *total) {
  *free = device_free_bytes();
  *total = device_capacity();
  return SUCCESS;
}

/* --- streams and events ------------------------------------------------------------------- */

int cudaStreamSynchronize(void *stream) {
  device_finish((uintptr_t)stream);
  return SUCCESS;
}

int cudaStreamQuery(void *handle) {
  struct device_stream *stream = device_stream((uintptr_t)handle);
  return stream->finished == stream->submitted ? SUCCESS : NOT_READY;
}

int cudaStreamCreateWithPriority(void **out, unsigned flags, int priority) {
  static uintptr_t last = (uintptr_t)1 << 32; /* far above the handles of scripts */
  (void)flags, (void)priority;
  *out = (void *)(last += 4096);
  return SUCCESS;
}
int cudaStreamGetPriority(void *stream, int *priority) {
  (void)stream;
  *priority = 0;
  return SUCCESS;
}
int cudaStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  *status = 0;
  return SUCCESS;
}
/* Its argument lists differ by release; all begin with the stream and the status. */
int cudaStreamGetCaptureInfo(void *stream, int *status) {
  return cudaStreamIsCapturing(stream, status);
}
int cudaStreamGetCaptureInfo_v2(void *stream, int *status) {
  return cudaStreamIsCapturing(stream, status);
}
int cudaStreamGetCaptureInfo_v3(void *stream, int *status) {
  return cudaStreamIsCapturing(stream, status);
}
int cudaThreadExchangeStreamCaptureMode(int *mode) {
  static int current;
  int previous = current;
  current = *mode;
  *mode = previous;
  return SUCCESS;
}
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
  (void)stream, (void)event, (void)flags;
  return SUCCESS;
}

int cudaEventCreateWithFlags(void **out, unsigned flags) {
  (void)flags;
  *out = calloc(1, sizeof(struct device_event));
  return answer(*out ? SUCCESS : MEMORY_ALLOCATION);
}
int cudaEventCreate(void **out) { return cudaEventCreateWithFlags(out, 0); }
int cudaEventDestroy(void *event) { free(event); return SUCCESS; }
int cudaEventRecord(void *event, void *stream) {
  device_record(event, (uintptr_t)stream);
  return SUCCESS;
}
int cudaEventQuery(void *event) {
  return answer(device_is_done(event) ? SUCCESS : NOT_READY);
}
int cudaEventSynchronize(void *event) { device_wait(event); return SUCCESS; }
int cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
  (void)start, (void)end;
  *milliseconds = 0;
  return SUCCESS;
}
int cudaEventElapsedTime_v2(float *milliseconds, void *start, void *end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}

/* --- the way to the driver's virtual-memory calls ----------------------------------------- */

static int driver_entry(const char *name, void **out, int *status) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *out = driver ? dlsym(driver, name) : NULL;
  if (driver) dlclose(driver);
  if (status) *status = *out ? 0 : 1; /* 1: symbol not found */
  return SUCCESS;
}
int cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                            int *status) {
  (void)flags;
  return driver_entry(name, out, status);
}
int cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                     unsigned long long flags, int *status) {
  (void)version, (void)flags;
  return driver_entry(name, out, status);
}

/* --- reached only by other backends, graphs, peers and copies ----------------------------- */

#define NEVER_REACHED(name) \
  int name(void) { return answer(NOT_SUPPORTED); }
NEVER_REACHED(cudaDeviceDisablePeerAccess)
NEVER_REACHED(cudaDeviceGetAttribute)
NEVER_REACHED(cudaDeviceGetDefaultMemPool)
NEVER_REACHED(cudaDeviceGetGraphMemAttribute)
NEVER_REACHED(cudaDeviceGetPCIBusId)
NEVER_REACHED(cudaDeviceSetGraphMemAttribute)
NEVER_REACHED(cudaDeviceSetMemPool)
NEVER_REACHED(cudaFreeAsync)
NEVER_REACHED(cudaFreeHost)
NEVER_REACHED(cudaGraphAddEmptyNode)
NEVER_REACHED(cudaGraphNodeGetDependencies)
NEVER_REACHED(cudaGraphNodeGetDependencies_v2)
NEVER_REACHED(cudaGraphNodeGetType)
NEVER_REACHED(cudaHostAlloc)
NEVER_REACHED(cudaHostRegister)
NEVER_REACHED(cudaHostUnregister)
NEVER_REACHED(cudaIpcCloseMemHandle)
NEVER_REACHED(cudaIpcGetMemHandle)
NEVER_REACHED(cudaIpcOpenMemHandle)
NEVER_REACHED(cudaMallocAsync)
NEVER_REACHED(cudaMemPoolGetAttribute)
NEVER_REACHED(cudaMemPoolSetAccess)
NEVER_REACHED(cudaMemPoolSetAttribute)
NEVER_REACHED(cudaMemPoolTrimTo)
NEVER_REACHED(cudaMemcpy)
NEVER_REACHED(cudaMemcpyAsync)
NEVER_REACHED(cudaMemcpyPeerAsync)
NEVER_REACHED(cudaPointerGetAttributes)
NEVER_REACHED(cudaStreamCreateWithFlags)
NEVER_REACHED(cudaStreamDestroy)
NEVER_REACHED(cudaStreamGetId)
NEVER_REACHED(cudaStreamUpdateCaptureDependencies)
