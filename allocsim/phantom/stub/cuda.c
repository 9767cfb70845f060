/* libcuda.so.1: the driver's virtual-memory calls, and the calls of kernels compiled at run time.
 *
 * A reservation is address space without memory, and a handle is memory without an address; mapping
 * joins the two and uses no memory.  A module loads and has every function that is requested; a
 * launch runs nothing.  cudart.c gives the reason for the declarations.
 */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101,
       NOT_FOUND = 500, NOT_PERMITTED = 800, NOT_SUPPORTED = 801 };

struct handle {
  size_t size;
};

int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuGetErrorName(int error, const char **text) {
  *text = error == SUCCESS         ? "CUDA_SUCCESS"
          : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                   : "CUDA_ERROR_INVALID_VALUE";
  return SUCCESS;
}
int cuGetErrorString(int error, const char **text) {
  switch (error) {
    case SUCCESS: *text = "no error"; break;
    case INVALID_VALUE: *text = "invalid argument"; break;
    case OUT_OF_MEMORY: *text = "out of memory"; break;
    default: *text = "operation not supported"; break;
  }
  return SUCCESS;
}

int cuMemAlloc_v2(uintptr_t *out, size_t size) {
  *out = device_malloc(size);
  return *out ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemFree_v2(uintptr_t address) {
  return device_release(address) ? INVALID_VALUE : SUCCESS;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  *free_bytes = device_free_bytes();
  *total = device_capacity();
  return SUCCESS;
}

int cuMemGetAllocationGranularity(size_t *out, const void *properties, int option) {
  (void)properties, (void)option;
  *out = DEVICE_PAGE;
  return SUCCESS;
}

int cuMemAddressReserve(uintptr_t *out, size_t size, size_t alignment, uintptr_t wish,
                        unsigned long long flags) {
  (void)alignment, (void)wish, (void)flags;
  *out = device_reserve(size);
  return *out ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemAddressFree(uintptr_t address, size_t size) {
  (void)size;
  return device_release(address) ? INVALID_VALUE : SUCCESS;
}

/* CUmemAllocationProp, as far as it matters here. */
struct handle_properties {
  int type;
  int shared_as; /* how other processes can open the handle */
};
enum { SHARED_BY_FABRIC = 8 };

/* A card without a fabric: some releases first request a fabric handle and then do without. */
int cuMemCreate(unsigned long long *out, size_t size, const struct handle_properties *properties,
                unsigned long long flags) {
  (void)flags;
  if (properties->shared_as & SHARED_BY_FABRIC) return NOT_PERMITTED;
  if (size == 0 || size % DEVICE_PAGE) return INVALID_VALUE;
  if (device_take(size)) return OUT_OF_MEMORY;
  struct handle *handle = malloc(sizeof *handle);
  if (!handle) {
    device_give(size);
    return OUT_OF_MEMORY;
  }
  handle->size = size;
  *out = (unsigned long long)(uintptr_t)handle;
  return SUCCESS;
}

int cuMemRelease(unsigned long long number) {
  struct handle *handle = (struct handle *)(uintptr_t)number;
  device_give(handle->size);
  free(handle);
  return SUCCESS;
}

int cuMemMap(uintptr_t address, size_t size, size_t offset, unsigned long long handle,
             unsigned long long flags) {
  (void)address, (void)size, (void)offset, (void)handle, (void)flags;
  return SUCCESS;
}
int cuMemUnmap(uintptr_t address, size_t size) { (void)address, (void)size; return SUCCESS; }
int cuMemSetAccess(uintptr_t address, size_t size, const void *access, size_t count) {
  (void)address, (void)size, (void)access, (void)count;
  return SUCCESS;
}

int cuMemGetAddressRange(uintptr_t *start, size_t *size, uintptr_t address) {
  return device_find(address, start, size) ? INVALID_VALUE : SUCCESS;
}
int cuMemGetAddressRange_v2(uintptr_t *start, size_t *size, uintptr_t address) {
  return cuMemGetAddressRange(start, size, address);
}

/* --- the devices, with one context each ------------------------------------------------------- */

/* Functions that are missing are "not found", as with an older driver. */
int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags,
                        int *status) {
  (void)version, (void)flags;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *out = driver ? dlsym(driver, name) : NULL;
  if (driver) dlclose(driver);
  if (status) *status = *out ? 0 : 1; /* 1: symbol not found */
  return *out ? SUCCESS : NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

int cuInit(unsigned flags) { (void)flags; return SUCCESS; }
/* Private tables of the driver, which the run-time compiler looks up but does not need. */
int cuGetExportTable(const void **table, const void *id) {
  (void)id;
  *table = NULL;
  return NOT_FOUND;
}
int cuDeviceGetCount(int *count) { *count = device_count(); return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal < 0 || ordinal >= device_count() ? INVALID_DEVICE : SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = device_attribute(attribute);
  return SUCCESS;
}
int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  snprintf(name, (size_t)length, "%s", device_card()->name);
  return SUCCESS;
}
int cuDeviceGetUuid(char uuid[16], int device) {
  device_uuid(device, uuid);
  return SUCCESS;
}
int cuDeviceGetUuid_v2(char uuid[16], int device) { return cuDeviceGetUuid(uuid, device); }
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = device_capacity();
  return SUCCESS;
}

static char contexts[DEVICE_MOST];

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  device_start_context();
  *context = &contexts[device];
  return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
int cuCtxGetCurrent(void **context) { *context = &contexts[device_current()]; return SUCCESS; }
int cuCtxSetCurrent(void *context) {
  if (context) device_select((int)((char *)context - contexts));
  return SUCCESS;
}
int cuCtxPushCurrent(void *context) { (void)context; return SUCCESS; }
int cuCtxPushCurrent_v2(void *context) { (void)context; return SUCCESS; }
int cuCtxPopCurrent(void **context) { return cuCtxGetCurrent(context); }
int cuCtxPopCurrent_v2(void **context) { return cuCtxGetCurrent(context); }
int cuCtxGetDevice(int *device) { *device = device_current(); return SUCCESS; }
int cuCtxSetLimit(int limit, size_t value) { (void)limit, (void)value; return SUCCESS; }
int cuCtxGetLimit(size_t *value, int limit) {
  (void)limit;
  *value = 0;
  return SUCCESS;
}
int cuStreamIsCapturing(void *stream, int *status) {
  *status = device_stream((uintptr_t)stream)->capture != 0;
  return SUCCESS;
}
int cuStreamGetCtx(void *stream, void **context) {
  (void)stream;
  return cuCtxGetCurrent(context);
}

enum { HOST = 1, DEVICE = 2 };
/* CU_POINTER_ATTRIBUTE_CONTEXT, _MEMORY_TYPE, _DEVICE_POINTER, _DEVICE_ORDINAL. */
int cuPointerGetAttribute(void *out, int attribute, uintptr_t address) {
  uintptr_t start;
  size_t size;
  const int is_on_host = device_find(address, &start, &size) != 0;
  if (is_on_host && !device_is_pinned(address)) return INVALID_VALUE;
  switch (attribute) {
    case 1: *(void **)out = &contexts[device_owner()]; return SUCCESS;
    case 2: *(unsigned *)out = is_on_host ? HOST : DEVICE; return SUCCESS;
    case 3: *(uintptr_t *)out = address; return SUCCESS;
    case 9: *(int *)out = device_owner(); return SUCCESS;
    default: return NOT_SUPPORTED;
  }
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **out, uintptr_t address) {
  for (unsigned i = 0; i < count; i++) {
    const int error = cuPointerGetAttribute(out[i], attributes[i], address);
    if (error) return error;
  }
  return SUCCESS;
}

/* --- kernels compiled at run time ------------------------------------------------------------ */

static int the_module, the_function, the_link;

int cuModuleLoad(void **module, const char *path) {
  (void)path;
  *module = &the_module;
  return SUCCESS;
}
/* Largest stack of a thread in bytes, by the attributes in the section .nv.info of an ELF file. */
static size_t stack_of(const unsigned char *image) {
  enum { ELF64_SECTIONS = 40, ELF64_COUNT = 60, HEADER = 64, FRAME_SIZE = 0x11, SIZED = 4 };
  uint64_t headers, at, size, most = 0;
  uint16_t count, names, length;
  uint32_t name, frame;
  if (memcmp(image, "\177ELF\2", 5)) return 0;
  memcpy(&headers, image + ELF64_SECTIONS, 8);
  memcpy(&count, image + ELF64_COUNT, 2);
  memcpy(&names, image + ELF64_COUNT + 2, 2);
  const unsigned char *section = image + headers;
  memcpy(&at, section + (size_t)names * HEADER + 24, 8);
  const char *texts = (const char *)image + at;
  for (; count; count--, section += HEADER) {
    memcpy(&name, section, 4);
    if (strcmp(texts + name, ".nv.info")) continue;
    memcpy(&at, section + 24, 8);
    memcpy(&size, section + 32, 8);
    for (const unsigned char *item = image + at; item + 4 <= image + at + size;) {
      memcpy(&length, item + 2, 2);
      if (item[0] == SIZED && item[1] == FRAME_SIZE) {
        memcpy(&frame, item + 8, 4); /* after the number of the function */
        if (frame > most) most = frame;
      }
      item += 4 + (item[0] == SIZED ? length : 0);
    }
  }
  return most;
}
int cuModuleLoadData(void **module, const void *image) {
  device_load_kernel(stack_of(image));
  return cuModuleLoad(module, NULL);
}
int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options,
                       void **values) {
  (void)count, (void)options, (void)values;
  return cuModuleLoadData(module, image);
}
int cuModuleUnload(void *module) { (void)module; return SUCCESS; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)module, (void)name;
  *function = &the_function;
  return SUCCESS;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  (void)function;
  *value = attribute == 0 ? device_attribute(1) : 0; /* threads per block; everything else unused */
  return SUCCESS;
}
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  (void)device;
  return cuFuncGetAttribute(value, attribute, kernel);
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return SUCCESS;
}
int cuFuncSetCacheConfig(void *function, int config) {
  (void)function, (void)config;
  return SUCCESS;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads,
                                                size_t shared) {
  (void)function;
  *blocks = device_occupancy(threads, shared);
  return SUCCESS;
}
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void *stream, void **arguments, void **extra) {
  (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y;
  (void)block_z, (void)shared, (void)arguments, (void)extra;
  device_launch((uintptr_t)stream);
  return SUCCESS;
}
int cuLaunchCooperativeKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, void *stream, void **arguments) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                        stream, arguments, NULL);
}
struct launch {
  unsigned grid[3], block[3], shared;
  void *stream;
};
int cuLaunchKernelEx(const struct launch *launch, void *function, void **arguments, void **extra) {
  (void)function, (void)arguments, (void)extra;
  device_launch((uintptr_t)launch->stream);
  return SUCCESS;
}

/* Libraries of kernels, which DeepGEMM compiles: each has one kernel. */
int cuLibraryLoadData(void **library, const void *image) {
  return cuModuleLoadData(library, image);
}
int cuLibraryLoadFromFile(void **library, const char *path) {
  device_load_kernel(0);
  return cuModuleLoad(library, path);
}
int cuLibraryUnload(void *library) { (void)library; return SUCCESS; }
int cuLibraryGetKernelCount(unsigned *count, void *library) {
  (void)library;
  *count = 1;
  return SUCCESS;
}
int cuLibraryEnumerateKernels(void **kernels, unsigned count, void *library) {
  (void)library;
  if (count) *kernels = &the_function;
  return SUCCESS;
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  return cuModuleGetFunction(kernel, library, name);
}
int cuKernelGetFunction(void **function, void *kernel) {
  *function = kernel;
  return SUCCESS;
}
int cuLinkCreate_v2(unsigned count, int *options, void **values, void **link) {
  (void)count, (void)options, (void)values;
  *link = &the_link;
  return SUCCESS;
}
int cuLinkAddData_v2(void) { return SUCCESS; }
int cuLinkComplete(void *link, void **image, size_t *size) {
  *image = link;
  *size = 0;
  return SUCCESS;
}
int cuLinkDestroy(void *link) { (void)link; return SUCCESS; }
int cuTensorMapEncodeTiled(void) { return SUCCESS; }
int cuTensorMapEncodeIm2col(void) { return SUCCESS; }
int cuOccupancyMaxActiveClusters(int *clusters, void *function, const void *launch) {
  (void)function, (void)launch;
  *clusters = 1;
  return SUCCESS;
}

/* Looked up by some releases, never called by a single-device program. */
#define NEVER_REACHED(name) \
  int name(void) { return NOT_SUPPORTED; }
NEVER_REACHED(cuMemExportToShareableHandle)
NEVER_REACHED(cuMemImportFromShareableHandle)
NEVER_REACHED(cuMemRetainAllocationHandle)
NEVER_REACHED(cuMemGetAllocationPropertiesFromHandle)
NEVER_REACHED(cuMemsetD32Async)
NEVER_REACHED(cuStreamWriteValue32)
NEVER_REACHED(cuStreamWriteValue32_v2)
NEVER_REACHED(cuMulticastAddDevice)
NEVER_REACHED(cuMulticastBindMem)
NEVER_REACHED(cuMulticastCreate)
NEVER_REACHED(cuMulticastUnbind)

/* Looked up when cuDNN plans its kernels, called only when they run. */
NEVER_REACHED(cuKernelSetAttribute)
NEVER_REACHED(cuLinkAddData)
NEVER_REACHED(cuLinkCreate)
NEVER_REACHED(cuOccupancyMaxPotentialClusterSize)
