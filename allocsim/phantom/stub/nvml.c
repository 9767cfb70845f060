/* libnvidia-ml.so.1: descriptions of the devices, and the processes that use memory.
 *
 * The text of an out-of-memory error lists the processes; servers read the descriptions.
 *
 * ALLOCSIM_PHANTOM_PROCESSES lists them, such as "4711:9663676416,self": other processes by id and
 * bytes, and this process, which holds the rest of the memory in use.  Without the variable there
 * are none, and the text has no sentences about processes.  "No fabric" keeps expandable segments
 * on plain handles.
 */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

/* A handle is a pointer into this array. */
static char devices[DEVICE_MOST];
static int number_of(const void *device) { return (int)((const char *)device - devices); }

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) { return error ? "Not Supported" : "Success"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)device_count(); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (index >= (unsigned)device_count()) return INVALID_ARGUMENT;
  *device = &devices[index];
  return SUCCESS;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) {
  *index = (unsigned)number_of(device);
  return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  (void)device;
  snprintf(name, length, "%s", device_card()->name);
  return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  (void)device;
  *major = device_card()->major;
  *minor = device_card()->minor;
  return SUCCESS;
}
int nvmlSystemGetDriverVersion(char *text, unsigned length) {
  snprintf(text, length, "580.159"); /* driver of the recordings in traces/h200 */
  return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
  char uuid[16], hex[33];
  device_uuid(number_of(device), uuid);
  for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", (unsigned char)uuid[i]);
  snprintf(text, length, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16,
           hex + 20);
  return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  for (int i = 0; i < device_count(); i++) {
    char text[64];
    nvmlDeviceGetUUID(&devices[i], text, sizeof text);
    *device = &devices[i];
    if (!strcmp(text, uuid)) return SUCCESS;
  }
  return NOT_FOUND;
}

struct pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
};
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
  memset(pci, 0, sizeof *pci);
  pci->bus = 1 + (unsigned)number_of(device);
  snprintf(pci->legacy, sizeof pci->legacy, "0000:%02x:00.0", pci->bus);
  snprintf(pci->text, sizeof pci->text, "00000000:%02x:00.0", pci->bus);
  return SUCCESS;
}
/* Both forms of the text end alike. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
  for (int i = 0; i < device_count(); i++) {
    struct pci pci;
    nvmlDeviceGetPciInfo_v3(&devices[i], &pci);
    *device = &devices[i];
    const size_t length = strlen(pci.legacy), given = strlen(bus);
    if (given >= length && !strcasecmp(bus + given - length, pci.legacy)) return SUCCESS;
  }
  return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used) {
  (void)device;
  total_free_used[0] = device_capacity();
  total_free_used[1] = device_free_bytes();
  total_free_used[2] = total_free_used[0] - total_free_used[1];
  return SUCCESS;
}
struct memory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory) {
  (void)device;
  memory->total = device_capacity();
  memory->reserved = 0;
  memory->free = device_free_bytes();
  memory->used = memory->total - memory->free;
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

int nvmlDeviceGetCpuAffinity(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNumaNodeId(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetP2PStatus(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
