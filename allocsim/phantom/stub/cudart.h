/* Error codes and helpers shared by the sources of libcudart. */
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

/* Store an error for cudaGetLastError, as every runtime call does, and return it. */
int answer(int error);

#define NEVER_REACHED(name) \
  int name(void) { return answer(NOT_SUPPORTED); }

#endif
