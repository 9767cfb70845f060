/* What the sources of libcudart share: the errors they answer, and how. */
#ifndef ALLOCSIM_PHANTOM_CUDART_H
#define ALLOCSIM_PHANTOM_CUDART_H

#include "device.h"

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  MEMORY_ALLOCATION = 2,
  INVALID_DEVICE = 101,
  NO_KERNEL_IMAGE = 209,
  NOT_READY = 600,
  NOT_SUPPORTED = 801
};

/* Notes an error for cudaGetLastError, as every call of the runtime does, and returns it. */
int answer(int error);

#define NEVER_REACHED(name) \
  int name(void) { return answer(NOT_SUPPORTED); }

#endif
