/* Kernels of libcudart.so.N: every launch succeeds and runs nothing.
 *
 * A launch is one piece of work for its stream.  A kernel reports only what libraries need to
 * choose a launch size: the version of the code that the device would run, and no shared memory.
 */
#include "cudart.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned x, y, z;
} dim3;

/* --- registration, as the compiler emits it ------------------------------------------------- */

/* A module has code for several architectures, and a device runs the best one of its own major
 * version.  CUB refuses a kernel whose version differs from its module's. */
struct fat_binary { /* passed by the code that the compiler emits */
  uint32_t magic, version;
  const unsigned char *images;
};
struct images { /* followed by the images, each after an image_header */
  uint32_t magic;
  uint16_t version, header_size;
  uint64_t size;
};
struct image_header {
  uint16_t kind, version; /* kind: 1 PTX, 2 machine code */
  uint32_t header_size;
  uint64_t size;
  uint32_t unknown[3];
  uint32_t architecture; /* 86 for 8.6 */
};
enum { MACHINE_CODE = 2, IMAGES_MAGIC = 0xBA55ED50 };

/* Return the version of the code that the device would run; 0 if the module has none for it. */
static int best_version(const struct fat_binary *binary) {
  const struct images *head = (const struct images *)binary->images;
  const int device = device_card()->major * 10 + device_card()->minor;
  int best = 0;
  if (head->magic != IMAGES_MAGIC) return device;
  const unsigned char *at = binary->images + head->header_size, *end = at + head->size;
  while (at < end) {
    const struct image_header *image = (const struct image_header *)at;
    const int version = (int)image->architecture;
    const int runs = image->kind != MACHINE_CODE || version / 10 == device_card()->major;
    if (runs && version <= device && version > best) best = version;
    at += image->header_size + image->size;
  }
  return best;
}

/* Version of each kernel, by the kernel's host address.  A kernel is loaded at its first launch. */
static struct kernel {
  const void *function;
  int version, is_loaded;
} *kernels;
static size_t n_kernels, room;

/* Open addressing with Fibonacci hashing; the table is at most half full. */
static struct kernel *slot_of(const void *function) {
  size_t slot = ((uintptr_t)function >> 4) * 0x9E3779B97F4A7C15u >> 32 & (room - 1);
  while (kernels[slot].function && kernels[slot].function != function)
    slot = (slot + 1) & (room - 1);
  return kernels + slot;
}

static void grow(void) {
  struct kernel *old = kernels;
  const size_t old_room = room;
  room = room ? room * 2 : 4096;
  if (!(kernels = calloc(room, sizeof *kernels))) abort();
  for (size_t i = 0; i < old_room; i++)
    if (old[i].function) *slot_of(old[i].function) = old[i];
  free(old);
}

void **__cudaRegisterFatBinary(void *binary) {
  void **module = malloc(sizeof *module);
  if (!module) abort();
  *module = (void *)(intptr_t)best_version(binary);
  return module;
}
void __cudaRegisterFatBinaryEnd(void **module) { (void)module; }
void __cudaUnregisterFatBinary(void **module) { free(module); }
/* No lock is needed: libraries are loaded one at a time. */
void __cudaRegisterFunction(void **module, const void *function) {
  if (2 * n_kernels >= room) grow();
  struct kernel *kernel = slot_of(function);
  n_kernels += !kernel->function;
  *kernel = (struct kernel){function, (int)(intptr_t)*module, 0};
}
void __cudaRegisterVar(void) {}
void __cudaRegisterManagedVar(void) {}
char __cudaInitModule(void **handle) { (void)handle; return 1; }

int __cudaGetKernel(void **kernel, const void *function) {
  *kernel = (void *)function;
  return SUCCESS;
}
int cudaGetFuncBySymbol(void **function, const void *symbol) {
  *function = (void *)symbol;
  return SUCCESS;
}

/* A device variable gets an address that is never read. */
int cudaGetSymbolAddress(void **out, const void *symbol) {
  *out = (void *)symbol;
  return SUCCESS;
}
int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset, int kind) {
  (void)symbol, (void)from, (void)size, (void)offset, (void)kind;
  return SUCCESS;
}

/* --- launches -------------------------------------------------------------------------------- */

/* f<<<grid, block, shared, stream>>>(...) pushes these values, and the stub of f pops them. */
static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  pushed.grid = grid;
  pushed.block = block;
  pushed.shared = shared;
  pushed.stream = stream;
  return SUCCESS;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *(void **)stream = pushed.stream;
  return SUCCESS;
}

int cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                     void *stream) {
  (void)grid, (void)block, (void)arguments, (void)shared;
  struct kernel *kernel = room ? slot_of(function) : NULL;
  if (kernel && kernel->function && !kernel->is_loaded) {
    kernel->is_loaded = 1;
    device_load_kernel(0);
  }
  device_launch((uintptr_t)stream);
  return SUCCESS;
}
int __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                       void *stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
int cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                size_t shared, void *stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

struct launch {
  dim3 grid, block;
  size_t shared;
  void *stream;
};
int cudaLaunchKernelExC(const struct launch *launch, const void *function, void **arguments) {
  return cudaLaunchKernel(function, launch->grid, launch->block, arguments, launch->shared,
                          launch->stream);
}

/* Host functions run immediately: there is no work to wait for. */
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
  device_launch((uintptr_t)stream);
  function(data);
  return SUCCESS;
}
int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data,
                          unsigned flags) {
  (void)flags;
  device_launch((uintptr_t)stream);
  function(stream, SUCCESS, data);
  return SUCCESS;
}

/* --- kernel attributes ----------------------------------------------------------------------- */

struct function_attributes {
  size_t shared, constant, local;
  int max_threads_per_block, registers, ptx_version, binary_version, cache_mode;
  int max_dynamic_shared, preferred_carveout;
};
int cudaFuncGetAttributes(struct function_attributes *out, const void *function) {
  const struct kernel *kernel = room ? slot_of(function) : NULL;
  const int is_known = kernel && kernel->function;
  const int version =
      is_known ? kernel->version : device_card()->major * 10 + device_card()->minor;
  memset(out, 0, sizeof *out);
  if (!version) return answer(NO_KERNEL_IMAGE);
  out->max_threads_per_block = device_attribute(1);
  out->registers = 32;
  out->ptx_version = out->binary_version = version;
  out->max_dynamic_shared = device_attribute(8);
  return SUCCESS;
}
int cudaFuncSetAttribute(const void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return SUCCESS;
}
int cudaFuncSetCacheConfig(const void *function, int config) {
  (void)function, (void)config;
  return SUCCESS;
}
int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  return SUCCESS;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                  size_t shared) {
  (void)function;
  *blocks = device_occupancy(threads, shared);
  return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                           int threads, size_t shared,
                                                           unsigned flags) {
  (void)flags;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

/* Kernels of libraries that are loaded at run time are not supported. */
NEVER_REACHED(cudaLibraryGetGlobal)
NEVER_REACHED(cudaLibraryGetKernel)
NEVER_REACHED(cudaLibraryGetKernelCount)
NEVER_REACHED(cudaLibraryGetManaged)
NEVER_REACHED(cudaLibraryGetUnifiedFunction)
NEVER_REACHED(cudaLibraryLoadData)
NEVER_REACHED(cudaLibraryLoadFromFile)
NEVER_REACHED(cudaLibraryUnload)
