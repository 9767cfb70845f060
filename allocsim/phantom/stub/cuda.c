/* libcuda.so.1 as far as expandable segments need it: the driver's virtual-memory calls.
 *
 * A reservation is address space without memory, a handle memory without an address; mapping
 * joins the two and costs nothing.  Declared by hand for the reason given in cudart.c.
 */
#include "device.h"

#include <stdlib.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };

struct handle {
  size_t size;
};

int cuGetErrorString(int error, const char **text) {
  switch (error) {
    case SUCCESS: *text = "no error"; break;
    case INVALID_VALUE: *text = "invalid argument"; break;
    case OUT_OF_MEMORY: *text = "out of memory"; break;
    default: *text = "operation not supported"; break;
  }
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

int cuMemCreate(unsigned long long *out, size_t size, const void *properties,
                unsigned long long flags) {
  (void)properties, (void)flags;
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

int cuDeviceGet(int *device, int ordinal) {
  *device = 0;
  return ordinal ? INVALID_VALUE : SUCCESS;
}
/* No attribute: no fabric, no peers, nothing that would change how handles are made. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)attribute, (void)device;
  *value = 0;
  return SUCCESS;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return SUCCESS;
}

/* Looked up by every release, called by none for a script. */
#define NEVER_REACHED(name) \
  int name(void) { return NOT_SUPPORTED; }
NEVER_REACHED(cuMemExportToShareableHandle)
NEVER_REACHED(cuMemImportFromShareableHandle)
NEVER_REACHED(cuMemRetainAllocationHandle)
NEVER_REACHED(cuMemGetAllocationPropertiesFromHandle)
NEVER_REACHED(cuMemsetD32Async)
NEVER_REACHED(cuStreamWriteValue32)
NEVER_REACHED(cuStreamWriteValue32_v2)
