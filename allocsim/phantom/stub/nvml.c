/* libnvidia-ml.so.1 as far as the out-of-memory text asks: a device without processes.
 *
 * "No processes" leaves the text's sentence about processes out, and "no fabric" keeps
 * expandable segments on plain handles.
 */
enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

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
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) {
  (void)device, (void)processes;
  *count = 0;
  return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, void *processes) {
  return nvmlDeviceGetComputeRunningProcesses(device, count, processes);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) {
  return nvmlDeviceGetComputeRunningProcesses(device, count, processes);
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = 13000;
  return SUCCESS;
}

/* 2.13 insists on success, so the absence of a fabric is told in the answer's state. */
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
