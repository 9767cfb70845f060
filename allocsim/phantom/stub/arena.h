/* Addresses as the CUDA driver of a Linux host chooses them for cudaMalloc (docs/semantics.md).
 *
 * Address space is taken in chunks, each the least multiple of 32 MiB that holds the request it is
 * taken for.  A request takes the lowest address at which a hole of any chunk is wide enough; a hole
 * never spans two chunks.  Where none is, a new chunk goes to the end of the highest gap between
 * chunks that is wide enough, else directly below the lowest chunk, and the request takes its
 * beginning.  A chunk of which nothing is used is given up at once and leaves a gap.
 */
#ifndef ALLOCSIM_PHANTOM_ARENA_H
#define ALLOCSIM_PHANTOM_ARENA_H

#include <stddef.h>
#include <stdint.h>

/* Start over: no chunk, the first of which will end at or below `top`. */
void arena_reset(uintptr_t top);
/* Add the chunks of a CUDA context, once after a reset.  `text` has "size:used" in MiB for each, the
 * highest first, whose used part is its beginning; then what loading the first kernels takes. */
void arena_add_context(const char *text);
/* Load kernels, once: the context takes memory for them and gives back its lowest chunk. */
void arena_load_kernels(void);
/* Take `size` bytes, whole pages; their address, 0 when the books cannot grow. */
uintptr_t arena_place(size_t size);
/* Give back what was placed at `start`. */
void arena_release(uintptr_t start, size_t size);

#endif
