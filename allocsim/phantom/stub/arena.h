/* Addresses that the CUDA driver of a Linux host chooses for cudaMalloc (docs/concepts/semantics.md).
 *
 * Address space is taken in chunks.  A chunk is the smallest multiple of 32 MiB that holds the
 * request that caused it.  A request goes to the lowest hole that is large enough; a hole never
 * spans two chunks.  If there is none, a new chunk is placed at the end of the highest gap between
 * chunks that is large enough, or directly below the lowest chunk, and the request gets the
 * beginning of the chunk.  A chunk that becomes empty is released immediately and leaves a gap.
 */
#ifndef ALLOCSIM_PHANTOM_ARENA_H
#define ALLOCSIM_PHANTOM_ARENA_H

#include <stddef.h>
#include <stdint.h>

/* Reset to no chunks; the first chunk will end at or below `top`. */
void arena_reset(uintptr_t top);
/* Add the chunks of a CUDA context, once after a reset.  `text` has "size:used" in MiB for each
 * chunk, highest address first, where the used part is the beginning, and then the MiB that the
 * first kernels need. */
void arena_add_context(const char *text);
/* Load kernels, once: the context takes memory for them, then releases its lowest chunk. */
void arena_load_kernels(void);
/* Take `size` bytes (whole pages); return their address, or 0 if the bookkeeping cannot grow. */
uintptr_t arena_place(size_t size);
/* Release a range that arena_place returned. */
void arena_release(uintptr_t start, size_t size);

#endif
