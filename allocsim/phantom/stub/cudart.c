/* libcudart.so.N, as far as PyTorch calls it: device, memory, streams and events over device.h
 * (launch.c has the kernels, graph.c the captures).
 *
 * Functions are declared here and not by CUDA's headers, so one source serves every CUDA release
 * and compiles without a toolkit.  Types that are only passed through are `void *`; enums are
 * `int`.  Functions that no single-device program reaches return "not supported".
 */
#define _GNU_SOURCE
#include "cudart.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef PHANTOM_CUDA
#define PHANTOM_CUDA 13
#endif

static __thread int last_error;

int answer(int error) {
  if (error) last_error = error;
  return error;
}

const char *cudaGetErrorName(int error) {
  switch (error) {
    case SUCCESS: return "cudaSuccess";
    case INVALID_VALUE: return "cudaErrorInvalidValue";
    case MEMORY_ALLOCATION: return "cudaErrorMemoryAllocation";
    case INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case NO_KERNEL_IMAGE: return "cudaErrorNoKernelImageForDevice";
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
    case NO_KERNEL_IMAGE: return "no kernel image is available for execution on the device";
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

/* --- the devices -------------------------------------------------------------------------- */

int cudaGetDeviceCount(int *count) { *count = device_count(); return SUCCESS; }
int cudaGetDevice(int *device) { *device = device_current(); return SUCCESS; }
int cudaSetDevice(int device) { return answer(device_select(device) ? INVALID_DEVICE : SUCCESS); }
static int is_device(int device) { return device >= 0 && device < device_count(); }
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

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  *value = device_attribute(attribute);
  return answer(is_device(device) ? SUCCESS : INVALID_DEVICE);
}
int cudaDeviceGetPCIBusId(char *text, int length, int device) {
  snprintf(text, (size_t)length, "0000:%02x:00.0", 1 + device);
  return SUCCESS;
}
int cudaDeviceSetLimit(int limit, size_t value) { (void)limit, (void)value; return SUCCESS; }
int cudaProfilerStart(void) { return SUCCESS; }
int cudaProfilerStop(void) { return SUCCESS; }

/* Offsets in cudaDeviceProp, from CUDA's headers; only the fields after the clock rate moved. */
#if PHANTOM_CUDA >= 13
enum { MULTIPROCESSORS = 384, PCI_BUS = 568, L2 = 596, MULTIPROCESSOR_THREADS = 604,
       MULTIPROCESSOR_SHARED = 624, MULTIPROCESSOR_REGS = 632, OPTIN_SHARED = 672,
       MULTIPROCESSOR_BLOCKS = 688, RESERVED_SHARED = 696, PROPERTIES_SIZE = 1008 };
#else
enum { MULTIPROCESSORS = 388, PCI_BUS = 584, L2 = 616, MULTIPROCESSOR_THREADS = 624,
       MULTIPROCESSOR_SHARED = 640, MULTIPROCESSOR_REGS = 648, OPTIN_SHARED = 696,
       MULTIPROCESSOR_BLOCKS = 712, RESERVED_SHARED = 720,
       PROPERTIES_SIZE = PHANTOM_CUDA == 12 ? 1032 : 728 };
#endif

/* Beginning of cudaDeviceProp, which has the same layout in releases 11 to 13. */
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
  int clock_rate; /* padding from CUDA 13 */
  size_t total_const_mem;
  int major, minor;
};

static int properties(struct properties *front, int device) {
  const struct device_card *card = device_card();
  char *bytes = (char *)front;
  memset(bytes, 0, PROPERTIES_SIZE);
  memcpy(front->name, card->name, sizeof front->name);
  device_uuid(device, front->uuid);
  front->total_global_mem = device_capacity();
  front->shared_mem_per_block = (size_t)device_attribute(8);
  front->regs_per_block = device_attribute(12);
  front->warp_size = device_attribute(10);
  front->mem_pitch = INT32_MAX;
  front->max_threads_per_block = device_attribute(1);
  for (int i = 0; i < 3; i++) {
    front->max_threads_dim[i] = device_attribute(2 + i);
    front->max_grid_size[i] = device_attribute(5 + i);
  }
  front->total_const_mem = 64 << 10;
  front->major = card->major;
  front->minor = card->minor;
  *(int *)(bytes + MULTIPROCESSORS) = card->multiprocessors;
  *(int *)(bytes + PCI_BUS) = 1 + device;
  *(int *)(bytes + L2) = device_attribute(38);
  *(int *)(bytes + MULTIPROCESSOR_THREADS) = device_attribute(39);
  *(size_t *)(bytes + MULTIPROCESSOR_SHARED) = (size_t)device_attribute(81);
  *(int *)(bytes + MULTIPROCESSOR_REGS) = device_attribute(82);
  *(size_t *)(bytes + OPTIN_SHARED) = (size_t)device_attribute(97);
  *(int *)(bytes + MULTIPROCESSOR_BLOCKS) = device_attribute(106);
  *(size_t *)(bytes + RESERVED_SHARED) = (size_t)device_attribute(111);
  return SUCCESS;
}

int cudaGetDeviceProperties(void *out, int device) {
  return is_device(device) ? properties(out, device) : answer(INVALID_DEVICE);
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
  device_start_context();
  *free = device_free_bytes();
  *total = device_capacity();
  return SUCCESS;
}

/* Pinned memory is ordinary host memory; only its addresses are recorded. */
int cudaHostAlloc(void **out, size_t size, unsigned flags) {
  (void)flags;
  if (posix_memalign(out, 4096, size ? size : 1)) return answer(MEMORY_ALLOCATION);
  return answer(device_pin((uintptr_t)*out, size) ? MEMORY_ALLOCATION : SUCCESS);
}
int cudaMallocHost(void **out, size_t size) { return cudaHostAlloc(out, size, 0); }
int cudaMallocManaged(void **out, size_t size, unsigned flags) {
  return cudaHostAlloc(out, size, flags);
}
/* Managed memory, as in bitsandbytes' paged optimizers, is on the host here and stays there. */
int cudaMemPrefetchAsync(void) { return SUCCESS; }
int cudaFreeHost(void *address) {
  if (!address) return SUCCESS;
  if (device_unpin((uintptr_t)address)) return answer(INVALID_VALUE);
  free(address);
  return SUCCESS;
}
int cudaHostRegister(void *address, size_t size, unsigned flags) {
  (void)flags;
  return answer(device_pin((uintptr_t)address, size) ? MEMORY_ALLOCATION : SUCCESS);
}
int cudaHostUnregister(void *address) {
  return answer(device_unpin((uintptr_t)address) ? INVALID_VALUE : SUCCESS);
}
int cudaHostGetDevicePointer(void **out, void *address, unsigned flags) {
  (void)flags;
  *out = address;
  return SUCCESS;
}

struct pointer_attributes {
  int type; /* 0 unregistered, 1 host, 2 device */
  int device;
  void *on_device, *on_host;
};
int cudaPointerGetAttributes(struct pointer_attributes *out, const void *pointer) {
  uintptr_t start;
  size_t size;
  void *address = (void *)pointer;
  if (device_find((uintptr_t)pointer, &start, &size) == 0)
    *out = (struct pointer_attributes){2, device_owner(), address, NULL};
  else if (device_is_pinned((uintptr_t)pointer))
    *out = (struct pointer_attributes){1, device_owner(), address, address};
  else
    *out = (struct pointer_attributes){0, -2, NULL, address};
  return SUCCESS;
}

static int is_on_device(const void *pointer) {
  uintptr_t start;
  size_t size;
  return device_find((uintptr_t)pointer, &start, &size) == 0;
}

/* Copies to the host bring zeros or the value that the caller set (device_tell_reads).  Copies to
 * the device or within it are not stored, except the last one (device_keep). */
static void copy(void *to, const void *from, size_t size) {
  if (is_on_device(to)) return;
  if (is_on_device(from)) {
    long long value;
    const int is_told = device_told_reads(&value) == DEVICE_READS_ANSWERED;
    memset(to, 0, size);
    if (is_told && (size == sizeof(int32_t) || size == sizeof(int64_t))) memcpy(to, &value, size);
  } else {
    memmove(to, from, size);
  }
}
static void note(const void *to, const void *from, size_t size) {
  if (size && is_on_device(from) && !is_on_device(to)) device_read_back(size);
}
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  (void)kind;
  if (is_on_device(to) && is_on_device(from)) {
    device_launch((uintptr_t)stream);
    return SUCCESS;
  }
  if (is_on_device(to)) {
    device_keep((uintptr_t)to, from, size);
  } else if (!is_on_device(from) || device_kept(to, (uintptr_t)from, size)) {
    copy(to, from, size);
    note(to, from, size);
  }
  device_submit((uintptr_t)stream);
  return SUCCESS;
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  cudaMemcpyAsync(to, from, size, kind, NULL);
  device_finish(0);
  return SUCCESS;
}
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind, void *stream) {
  (void)kind;
  for (size_t row = 0; row < height; row++)
    copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  note(to, from, width * height);
  device_launch((uintptr_t)stream);
  return SUCCESS;
}
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                        void *stream) {
  (void)to_device, (void)from_device;
  return cudaMemcpyAsync(to, from, size, 0, stream);
}
int cudaMemsetAsync(void *address, int value, size_t size, void *stream) {
  if (!is_on_device(address)) memset(address, value, size);
  device_launch((uintptr_t)stream);
  return SUCCESS;
}
int cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height,
                      void *stream) {
  if (!is_on_device(address))
    for (size_t row = 0; row < height; row++) memset((char *)address + row * pitch, value, width);
  device_launch((uintptr_t)stream);
  return SUCCESS;
}
int cudaMemset(void *address, int value, size_t size) {
  return cudaMemsetAsync(address, value, size, NULL);
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
  static uintptr_t last = (uintptr_t)1 << 32; /* far above the handles that scripts use */
  (void)flags, (void)priority;
  *out = (void *)(last += 4096);
  return SUCCESS;
}
int cudaStreamCreateWithFlags(void **out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}
int cudaStreamCreate(void **out) { return cudaStreamCreateWithPriority(out, 0, 0); }
int cudaStreamDestroy(void *stream) { device_finish((uintptr_t)stream); return SUCCESS; }
int cudaStreamGetId(void *stream, unsigned long long *id) {
  *id = (uintptr_t)stream;
  return SUCCESS;
}
int cudaStreamGetPriority(void *stream, int *priority) {
  (void)stream;
  *priority = 0;
  return SUCCESS;
}
int cudaThreadExchangeStreamCaptureMode(int *mode) {
  static int current;
  int previous = current;
  current = *mode;
  *mode = previous;
  return SUCCESS;
}
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
  (void)flags;
  device_capture_join((uintptr_t)stream, event);
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
/* An event for use outside of the capture in which it is recorded; it becomes a node. */
enum { EXTERNAL = 1 };
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
  cudaEventRecord(event, stream);
  if (flags & EXTERNAL) ((struct device_event *)event)->capture = 0;
  return SUCCESS;
}
int cudaEventQuery(void *event) {
  return answer(device_is_done(event) ? SUCCESS : NOT_READY);
}
int cudaEventSynchronize(void *event) { device_wait(event); return SUCCESS; }
/* Every measured time is the same, because nothing is computed.  It is not zero, because autotuners
   divide by it, and so long that they run each candidate once; on a tie they keep the first. */
int cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
  (void)start, (void)end;
  *milliseconds = 1000;
  return SUCCESS;
}
int cudaEventElapsedTime_v2(float *milliseconds, void *start, void *end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}

/* --- access to the driver's virtual-memory calls -------------------------------------------- */

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

/* --- reached only by other backends and by programs with several processes ------------------ */

NEVER_REACHED(cudaDeviceDisablePeerAccess)
NEVER_REACHED(cudaDeviceGetDefaultMemPool)
NEVER_REACHED(cudaDeviceGetGraphMemAttribute)
NEVER_REACHED(cudaDeviceSetGraphMemAttribute)
NEVER_REACHED(cudaDeviceReset)
NEVER_REACHED(cudaDeviceSetMemPool)
NEVER_REACHED(cudaFreeAsync)
NEVER_REACHED(cudaIpcCloseMemHandle)
NEVER_REACHED(cudaIpcGetEventHandle)
NEVER_REACHED(cudaIpcGetMemHandle)
NEVER_REACHED(cudaIpcOpenEventHandle)
NEVER_REACHED(cudaIpcOpenMemHandle)
NEVER_REACHED(cudaMallocAsync)
NEVER_REACHED(cudaMemPoolGetAttribute)
NEVER_REACHED(cudaMemPoolSetAccess)
NEVER_REACHED(cudaMemPoolSetAttribute)
NEVER_REACHED(cudaMemPoolTrimTo)
