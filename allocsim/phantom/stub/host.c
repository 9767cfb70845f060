/* Host memory larger than the machine's.  PyTorch's CPU allocator calls posix_memalign and free.
 *
 * Linux refuses an allocation that exceeds the memory of the machine, although the pages of a
 * tensor that is never written are never used.  vLLM makes such tensors as large as the KV cache,
 * to read their strides. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define LARGE ((size_t)1 << 30)
#define PAGE 4096
#define MOST 4096

extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { void *start; size_t size; } large[MOST];
static _Atomic int count; /* used items of `large`, at its start */

static int keep(void *start, size_t size) {
  pthread_mutex_lock(&lock);
  const int kept = count < MOST;
  if (kept) {
    large[count].start = start;
    large[count].size = size;
    count++;
  }
  pthread_mutex_unlock(&lock);
  return kept;
}

/* Return the size of a large allocation, and forget it; 0 for any other address. */
static size_t forget(void *start) {
  size_t size = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < count; i++)
    if (large[i].start == start) {
      size = large[i].size;
      large[i] = large[--count];
      break;
    }
  pthread_mutex_unlock(&lock);
  return size;
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  if (alignment % sizeof(void *) || !alignment || alignment & (alignment - 1)) return EINVAL;
  *out = __libc_memalign(alignment, size);
  if (*out) return 0;
  if (size < LARGE || alignment > PAGE) return ENOMEM;
  void *found = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return ENOMEM;
  if (keep(found, size)) {
    *out = found;
    return 0;
  }
  munmap(found, size);
  return ENOMEM;
}

void free(void *address) {
  if (count && address && !((uintptr_t)address % PAGE)) {
    const size_t size = forget(address);
    if (size) {
      munmap(address, size);
      return;
    }
  }
  __libc_free(address);
}
