/* cuFFT, as far as PyTorch calls it: every plan can be made and every transform succeeds.
 *
 * Rule: a plan's work area is one complex element for each point of each transform, the minimum
 * in cuFFT's manual.  There is none if every dimension fits in a block's shared memory and its
 * length has only the factors 2 and 3.  Real runs on an L40S with 256 points, 3072 x 3072 and more
 * reserved exactly these sizes (benchmarks/results/imagegen.md, c3a and fourierft).  Other lengths and cards
 * are not known, so every program with plans is noted as guessed.
 */

#include <stddef.h>

enum { SUCCESS = 0, HALF = 6, SINGLE = 4 };
enum { SHARED_MEMORY = 48 << 10 }; /* bytes that a block can use on any card */

#define SUCCEEDS(name) \
  int name(void) { return SUCCESS; }

static int fits_a_block(long long length, size_t element) {
  if (length < 1 || (size_t)length * element > SHARED_MEMORY) return 0;
  while (length % 2 == 0) length /= 2;
  while (length % 3 == 0) length /= 3;
  return length == 1;
}

int cufftCreate(int *plan) {
  static int last;
  *plan = ++last;
  return SUCCESS;
}
int cufftXtMakePlanMany(int plan, int rank, long long *sizes, long long *in_embed,
                        long long in_stride, long long in_distance, int in_type,
                        long long *out_embed, long long out_stride, long long out_distance,
                        int out_type, long long batch, size_t *work, int execution) {
  (void)plan, (void)in_embed, (void)in_stride, (void)in_distance, (void)in_type;
  (void)out_embed, (void)out_stride, (void)out_distance, (void)out_type;
  device_note_guess("cuFFT");
  size_t element = execution == HALF ? 4 : execution == SINGLE ? 8 : 16;
  size_t elements = (size_t)batch;
  int in_place = 1;
  for (int i = 0; i < rank; i++) {
    elements *= (size_t)sizes[i];
    in_place = in_place && fits_a_block(sizes[i], element);
  }
  *work = in_place ? 0 : elements * element;
  return SUCCESS;
}
SUCCEEDS(cufftDestroy)
SUCCEEDS(cufftSetAutoAllocation)
SUCCEEDS(cufftSetStream)
SUCCEEDS(cufftSetWorkArea)
SUCCEEDS(cufftXtExec)
