// The null device's libcuda.so.1, which Triton and torch open: modules are loaded, launches counted, nothing run.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char pool[65536];
static void *handle(void) {
  static long last;
  return pool + __sync_fetch_and_add(&last, 64) % 65000;
}
static int device_count(void) {
  const char *text = getenv("NULL_CUDA_DEVICES");
  return text ? atoi(text) : 1;
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) {
  *version = 13020;
  return 0;
}
int cuDeviceGetCount(int *count) {
  *count = device_count();
  return 0;
}
int cuDeviceGet(int *device, int i) {
  *device = i;
  return 0;
}
int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, size, "Null H100");
  return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  const char *text = getenv("NULL_CUDA_GB");
  *bytes = (size_t)((text ? atof(text) : 80) * 1e9);
  return 0;
}
int cuDeviceGetUuid(void *uuid, int device) {
  memset(uuid, device, 16);
  return 0;
}
int cuDeviceGetUuid_v2(void *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
int cuDeviceGetAttribute(int *value, int attribute, int device) { // numbers of CUdevice_attribute
  switch (attribute) {
  case 1: *value = 1024; break;     // threads of a block
  case 8: *value = 49152; break;    // shared memory of a block
  case 10: *value = 32; break;      // threads of a warp
  case 12: *value = 65536; break;   // registers of a block
  case 13: *value = 1980000; break; // kHz
  case 16: *value = 132; break;     // multiprocessors
  case 36: *value = 2619000; break; // kHz of the memory
  case 37: *value = 5120; break;    // bits of the memory's bus
  case 39: *value = 2048; break;    // threads of a multiprocessor
  case 75: *value = 9; break;       // compute capability
  case 76: *value = 0; break;
  case 81: *value = 233472; break; // shared memory of a multiprocessor
  case 82: *value = 65536; break;  // registers of a multiprocessor
  case 97: *value = 232448; break; // shared memory that a block may ask for
  default: *value = 1;
  }
  return 0;
}
int cuCtxGetCurrent(void **context) {
  *context = pool;
  return 0;
}
int cuCtxGetDevice(int *device) {
  int (*current)(int *) = dlsym(RTLD_DEFAULT, "cudaGetDevice");
  *device = 0;
  return current ? current(device) : 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return cuCtxGetCurrent(context); }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return 0;
}
int cuModuleLoadData(void **module, const void *image) {
  *module = handle();
  return 0;
}
int cuModuleLoadDataEx(void **module, const void *image, unsigned n, void *o, void *v) {
  return cuModuleLoadData(module, image);
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = strdup(name);
  return 0;
}
int cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned n, void *d, void *e, unsigned m) {
  return cuModuleLoadData(library, code);
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  return cuModuleGetFunction(kernel, library, name);
}
int cuKernelGetFunction(void **function, void *kernel) {
  *function = kernel;
  return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute == 0 ? 1024 : 0;
  return 0;
}
int cuOccupancyMaxActiveClusters(int *count, void *function, void *config) {
  *count = 1;
  return 0;
}
static int launch(unsigned x, unsigned y, unsigned z) {
  long *launches = dlsym(RTLD_DEFAULT, "null_counts"); // the first of Counts
  if (!x || !y || !z || y > 65535 || z > 65535) return 1;
  if (launches) __sync_fetch_and_add(launches, 1);
  return 0;
}
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared,
                   void *stream, void **parameters, void **extra) {
  return launch(x, y, z);
}
int cuLaunchKernelEx(const unsigned *config, void *f, void **parameters, void **extra) {
  return launch(config[0], config[1], config[2]);
}
int cuGetErrorString(int e, const char **text) {
  *text = "an error of the null device";
  return 0;
}
int cuGetErrorName(int e, const char **text) { return cuGetErrorString(e, text); }
static int do_nothing(void) { return 0; }
static void *entry_point(const char *name) {
  char versioned[128];
  void *self = dlopen("libcuda.so.1", RTLD_NOW), *p = dlsym(self, name);
  snprintf(versioned, sizeof versioned, "%s_v2", name);
  if (!p) p = dlsym(self, versioned);
  return p ? p : (void *)do_nothing;
}
int cuGetProcAddress_v2(const char *name, void **p, int version, uint64_t flags, void *status) {
  *p = entry_point(name);
  return 0;
}
int cuGetProcAddress(const char *name, void **p, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, p, version, flags, 0);
}
int cuPointerGetAttribute(void *data, int attribute, uint64_t p) {
  if (attribute == 3 || attribute == 2) // device and host pointer
    *(uint64_t *)data = p;
  else
    *(int *)data = 2; // memory of the device
  return 0;
}
int cuTensorMapEncodeTiled() { return 0; }
