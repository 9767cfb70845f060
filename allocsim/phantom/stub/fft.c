/* cuFFT as far as PyTorch calls it: every plan is made and every transform succeeds.
 *
 * Rule: a plan's work area is one complex element for each point of each transform, the least
 * that cuFFT's manual names; which plans of a real GPU take more (or, of short transforms, none)
 * cannot be known here, so that a program with plans is noted as guessed.
 */
#include "device.h"

#include <stddef.h>

enum { SUCCESS = 0, HALF = 6, SINGLE = 4 };

#define SUCCEEDS(name) \
  int name(void) { return SUCCESS; }

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
  size_t elements = (size_t)batch;
  for (int i = 0; i < rank; i++) elements *= (size_t)sizes[i];
  *work = elements * (execution == HALF ? 4 : execution == SINGLE ? 8 : 16);
  return SUCCESS;
}
SUCCEEDS(cufftDestroy)
SUCCEEDS(cufftSetAutoAllocation)
SUCCEEDS(cufftSetStream)
SUCCEEDS(cufftSetWorkArea)
SUCCEEDS(cufftXtExec)
