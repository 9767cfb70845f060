/* libnvidia-ml.so.1, as far as the out-of-memory text calls it: the processes that use memory.
 *
 * ALLOCSIM_PHANTOM_PROCESSES lists them, such as "4711:9663676416,self": other processes by id and
 * bytes, and this process, which holds the rest of the memory in use.  Without the variable there
 * are none, and the text has no sentences about processes.  "No fabric" keeps expandable segments
 * on plain handles.
 */
#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

static int the_device;

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) { return error ? "Not Supported" : "Success"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = &the_device;
  return index ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  (void)uuid;
  *device = &the_device;
  return SUCCESS;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
  (void)bus;
  *device = &the_device;
  return SUCCESS;
}

struct process {
  unsigned number;
  unsigned long long used;
};

/* Write at most `room` processes; return the number of all processes. */
static unsigned read_processes(struct process *out, unsigned room) {
  const char *text = getenv("ALLOCSIM_PHANTOM_PROCESSES");
  unsigned long long others = 0;
  unsigned n = 0, self = room;
  while (text && *text) {
    char *end = (char *)text;
    struct process next = {(unsigned)getpid(), 0};
    if (strncmp(text, "self", 4) == 0) {
      self = n;
      end += 4;
    } else {
      next.number = (unsigned)strtoul(text, &end, 10);
      if (*end == ':') next.used = strtoull(end + 1, &end, 10);
      others += next.used;
    }
    if (n < room) out[n] = next;
    n++;
    text = *end == ',' ? end + 1 : NULL;
  }
  /* Last, because this process holds the memory that no other process does. */
  if (self < room) out[self].used = device_capacity() - device_free_bytes() - others;
  return n;
}

/* PyTorch calls this version; later versions have other structures. */
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) {
  (void)device;
  const unsigned room = processes ? *count : 0;
  *count = read_processes(processes, room);
  return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, void *processes) {
  (void)device, (void)processes;
  *count = 0;
  return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) {
  return nvmlDeviceGetComputeRunningProcesses_v2(device, count, processes);
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = 13000;
  return SUCCESS;
}

/* 2.13 requires success, so the state of the answer reports that there is no fabric. */
struct fabric {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state; /* 0: not supported */
};
int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric *fabric) {
  (void)device;
  fabric->state = 0;
  return SUCCESS;
}

int nvmlDeviceGetUUID(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetP2PStatus(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
