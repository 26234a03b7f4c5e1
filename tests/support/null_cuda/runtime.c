// A null CUDA device: the entry points of libcudart and cuBLAS, to be preloaded. Memory is the host's, copies are done;
// kernels and products are counted and not run, so that their results stay zero. What runs for real is the host code of
// torch, Triton and faiss: allocators, streams, events, autocast, assertions of operators, "does not have a
// deterministic implementation", warnings of synchronisation. `stubs.py` makes the entry points that are not here.
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// support.null_cuda.Counts has the same fields in the same order
typedef struct {
  long launches, products, waits_for_streams, waits_for_devices, waits_for_events;
  long to_device, to_host, on_device, to_device_waiting, to_host_waiting;
  long allocations, frees, pinned, bytes, peak_bytes;
} Counts;
Counts null_counts;
#define COUNT(field) __sync_fetch_and_add(&null_counts.field, 1)

// after null_break(code) every call fails with it, as after an assertion on the device
static volatile int broken = 0;
void null_break(int code) { broken = code; }
#define FAIL_IF_BROKEN                                                                                                 \
  if (broken) return (cudaError_t)broken

static __thread int current_device = 0;

static double number(const char *variable, double fallback) {
  const char *text = getenv(variable);
  return text ? atof(text) : fallback;
}
static int device_count(void) { return (int)number("NULL_CUDA_DEVICES", 1); }
static long device_bytes(void) { return (long)(number("NULL_CUDA_GB", 80) * 1e9); }

// ---- memory: the ranges that were allocated, by device

enum { NO_RANGE, DEVICE, PINNED };
typedef struct {
  char *start;
  size_t size;
  int kind, device;
} Range;
static Range *ranges;
static int range_count, range_room;
static long bytes_of[64];
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

static void *map(size_t size) {
  void *start = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return start == MAP_FAILED ? 0 : start;
}

static void add_bytes(int device, long size) {
  bytes_of[device] += size;
  null_counts.bytes += size;
  if (null_counts.bytes > null_counts.peak_bytes) null_counts.peak_bytes = null_counts.bytes;
}

static void add_range(void *start, size_t size, int kind) {
  pthread_mutex_lock(&memory_lock);
  if (range_count == range_room) {
    range_room = range_room ? 2 * range_room : 1024;
    ranges = realloc(ranges, range_room * sizeof(Range));
  }
  ranges[range_count++] = (Range){start, size, kind, current_device};
  if (kind == DEVICE) add_bytes(current_device, (long)size);
  pthread_mutex_unlock(&memory_lock);
}

static size_t drop_range(void *start) {
  size_t size = 0;
  pthread_mutex_lock(&memory_lock);
  for (int i = range_count - 1; i >= 0; i--)
    if (ranges[i].start == start) {
      size = ranges[i].size;
      if (ranges[i].kind == DEVICE) add_bytes(ranges[i].device, -(long)size);
      ranges[i] = ranges[--range_count];
      break;
    }
  pthread_mutex_unlock(&memory_lock);
  return size;
}

static int kind_of(const void *address, int *device) {
  const char *byte = address;
  int kind = NO_RANGE;
  pthread_mutex_lock(&memory_lock);
  for (int i = range_count - 1; i >= 0; i--)
    if (byte >= ranges[i].start && byte < ranges[i].start + ranges[i].size) {
      kind = ranges[i].kind;
      if (device) *device = ranges[i].device;
      break;
    }
  pthread_mutex_unlock(&memory_lock);
  return kind;
}

cudaError_t cudaMalloc(void **p, size_t size) {
  FAIL_IF_BROKEN;
  COUNT(allocations);
  *p = 0;
  if (!size) return cudaSuccess;
  if (bytes_of[current_device] + (long)size > device_bytes() || !(*p = map(size))) return cudaErrorMemoryAllocation;
  add_range(*p, size, DEVICE);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void **p, size_t size, cudaStream_t s) { return cudaMalloc(p, size); }
cudaError_t cudaMallocManaged(void **p, size_t size, unsigned flags) { return cudaMalloc(p, size); }
cudaError_t cudaFree(void *p) {
  FAIL_IF_BROKEN;
  COUNT(frees);
  size_t size = p ? drop_range(p) : 0;
  if (size) munmap(p, size);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return cudaFree(p); }
cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags) {
  FAIL_IF_BROKEN;
  COUNT(pinned);
  *p = map(size ? size : 1);
  add_range(*p, size ? size : 1, PINNED);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t size) { return cudaHostAlloc(p, size, 0); }
cudaError_t cudaFreeHost(void *p) {
  size_t size = p ? drop_range(p) : 0;
  if (size) munmap(p, size);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void *p, size_t size, unsigned flags) {
  FAIL_IF_BROKEN;
  COUNT(pinned);
  add_range(p, size, PINNED);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p) {
  drop_range(p);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  FAIL_IF_BROKEN;
  *total = (size_t)device_bytes();
  *available = (size_t)(device_bytes() - bytes_of[current_device]);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  int device = 0, kind = kind_of(p, &device);
  memset(a, 0, 24); // CUDA 12's is shorter than CUDA 13's
  a->type = kind == DEVICE ? cudaMemoryTypeDevice : kind == PINNED ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  a->device = device;
  if (kind != NO_RANGE) a->devicePointer = (void *)p;
  if (kind == PINNED) a->hostPointer = (void *)p;
  return cudaSuccess;
}

// ---- copies: a copy between the device and memory that is not pinned waits, as on a GPU

static void count_copy(const void *to, const void *from, int waiting) {
  int target = kind_of(to, 0), source = kind_of(from, 0);
  if (target == DEVICE && source == DEVICE)
    COUNT(on_device);
  else if (target == DEVICE) {
    COUNT(to_device);
    if (waiting || source != PINNED) COUNT(to_device_waiting);
  } else if (source == DEVICE) {
    COUNT(to_host);
    if (waiting || target != PINNED) COUNT(to_host_waiting);
  }
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  FAIL_IF_BROKEN;
  count_copy(to, from, 1);
  memmove(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t s) {
  FAIL_IF_BROKEN;
  count_copy(to, from, 0);
  memmove(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int d, const void *from, int e, size_t size, cudaStream_t s) {
  return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, s);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t s) {
  FAIL_IF_BROKEN;
  count_copy(to, from, 0);
  for (size_t row = 0; row < height; row++)
    memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t n, size_t o, enum cudaMemcpyKind k) {
  return cudaSuccess;
}
// fresh pages are zero: large ranges that are cleared stay untouched
static cudaError_t set(void *p, int value, size_t size) {
  FAIL_IF_BROKEN;
  if (value || size <= 65536) memset(p, value, size);
  return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t size) { return set(p, value, size); }
cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t s) { return set(p, value, size); }

// ---- kernels, by name

typedef struct {
  const void *function;
  const char *name;
  long launches;
} Kernel;
static Kernel *kernels; // an open hash table
static long kernel_room, kernel_count;
static pthread_mutex_t kernel_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t place(const void *function, const Kernel *table, long room) {
  size_t i = (((uintptr_t)function * 11400714819323198485ull) >> 20) % room;
  while (table[i].function && table[i].function != function)
    i = (i + 1) % room;
  return i;
}
void __cudaRegisterFunction(void **handle, const char *function, char *device, const char *name, int limit, void *a,
                            void *b, void *c, void *d, int *e) {
  pthread_mutex_lock(&kernel_lock);
  if (2 * (kernel_count + 1) > kernel_room) {
    long room = kernel_room ? 2 * kernel_room : 1 << 17;
    Kernel *table = calloc(room, sizeof *table);
    for (long i = 0; i < kernel_room; i++)
      if (kernels[i].function) table[place(kernels[i].function, table, room)] = kernels[i];
    free(kernels);
    kernels = table;
    kernel_room = room;
  }
  Kernel *kernel = &kernels[place(function, kernels, kernel_room)];
  if (!kernel->function) kernel_count++;
  kernel->function = function;
  kernel->name = name;
  pthread_mutex_unlock(&kernel_lock);
}
static cudaError_t launch(const void *function, dim3 grid, dim3 block) {
  FAIL_IF_BROKEN;
  if (!grid.x || !grid.y || !grid.z || block.x * block.y * block.z > 1024) return cudaErrorInvalidConfiguration;
  COUNT(launches);
  pthread_mutex_lock(&kernel_lock);
  if (kernel_room) kernels[place(function, kernels, kernel_room)].launches++;
  pthread_mutex_unlock(&kernel_lock);
  return cudaSuccess;
}
// one line a kernel: how often it was launched since null_clear, and its name
void null_write_kernels(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) return;
  for (long i = 0; i < kernel_room; i++)
    if (kernels[i].function && kernels[i].launches) fprintf(file, "%ld %s\n", kernels[i].launches, kernels[i].name);
  fclose(file);
}
void null_clear(void) {
  long bytes = null_counts.bytes;
  memset(&null_counts, 0, sizeof null_counts);
  null_counts.bytes = null_counts.peak_bytes = bytes;
  for (long i = 0; i < kernel_room; i++)
    kernels[i].launches = 0;
}
void **__cudaRegisterFatBinary(void *p) {
  static void *handle[4];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void **p) {}
void __cudaUnregisterFatBinary(void **p) {}
void __cudaRegisterVar(void **f, char *h, char *d, const char *n, int e, size_t s, int c, int g) {}
void __cudaRegisterManagedVar(void **f, void **h, char *d, const char *n, int e, size_t s, int c, int g) {}
char __cudaInitModule(void **f) { return 0; }

// a launch by <<<grid, block>>> pushes its configuration, which the kernel's own host code pops
static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} pushed[16];
static __thread int pushed_count;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  if (pushed_count < 16) {
    pushed[pushed_count].grid = grid;
    pushed[pushed_count].block = block;
    pushed[pushed_count].shared = shared;
    pushed[pushed_count++].stream = stream;
  }
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (pushed_count) {
    pushed_count--;
    *grid = pushed[pushed_count].grid;
    *block = pushed[pushed_count].block;
    *shared = pushed[pushed_count].shared;
    *(void **)stream = pushed[pushed_count].stream;
  }
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **a, size_t shared, cudaStream_t s) {
  return launch(f, grid, block);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *f, void **a) {
  return launch(f, config->gridDim, config->blockDim);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **a, size_t shared, cudaStream_t s) {
  return launch((const void *)k, grid, block);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t k, dim3 grid, dim3 block, void **a, size_t shared, cudaStream_t s) {
  return launch((const void *)k, grid, block);
}
cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **a, size_t m, cudaStream_t s) {
  return launch(f, grid, block);
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = a->binaryVersion = 90;
  a->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int v) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t k, enum cudaFuncAttribute a, int v, int d) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int b, size_t m) {
  *n = 4;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t m, unsigned g) {
  *n = 4;
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void **p, const void *symbol) {
  static char buffer[1 << 20];
  *p = buffer;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data) {
  f(data);
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void *data, unsigned g) {
  f(s, cudaSuccess, data);
  return cudaSuccess;
}

// ---- devices

cudaError_t cudaGetDeviceCount(int *count) {
  *count = device_count();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  COUNT(waits_for_devices);
  return (cudaError_t)broken;
}
cudaError_t cudaDriverGetVersion(int *version) {
  *version = 13020;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
#define PROPERTIES properties
#include "properties.h"
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  properties(p, device_bytes());
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int d) {
  switch (attribute) {
  case cudaDevAttrMultiProcessorCount: *value = 132; break;
  case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
  case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
  case cudaDevAttrWarpSize: *value = 32; break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
  case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
  case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
  case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
  case cudaDevAttrMaxGridDimY:
  case cudaDevAttrMaxGridDimZ: *value = 65535; break;
  case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
  default: *value = 1;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *value, int a, int b) {
  *value = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int a, unsigned f) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
  snprintf(text, size, "0000:%02d:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int d) {
  *pool = (void *)16;
  return cudaSuccess;
}

// ---- streams and events: all work is done when it is asked for

static void *handle(void) {
  static long last = 4096;
  return (void *)(uintptr_t)__sync_add_and_fetch(&last, 16);
}
cudaError_t cudaStreamCreate(cudaStream_t *s) {
  FAIL_IF_BROKEN;
  *s = handle();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { return cudaStreamCreate(s); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { return cudaStreamCreate(s); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t s) { return (cudaError_t)broken; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  COUNT(waits_for_streams);
  return (cudaError_t)broken;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) { return (cudaError_t)broken; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  if (status) *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  if (graph) *graph = 0;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *e) {
  FAIL_IF_BROKEN;
  *e = handle();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) { return cudaEventCreate(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t e) { return (cudaError_t)broken; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return (cudaError_t)broken; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { return (cudaError_t)broken; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  COUNT(waits_for_events);
  return (cudaError_t)broken;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t a, cudaEvent_t b) {
  *milliseconds = 1;
  return (cudaError_t)broken;
}

// ---- errors, and where the driver is asked for

const char *cudaGetErrorString(cudaError_t e) {
  switch (e) {
  case cudaSuccess: return "no error";
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorAssert: return "device-side assert triggered";
  case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
  case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
  default: return "an error of the null device";
  }
}
const char *cudaGetErrorName(cudaError_t e) { return "cudaErrorOfTheNullDevice"; }
cudaError_t cudaGetLastError(void) { return (cudaError_t)broken; }
cudaError_t cudaPeekAtLastError(void) { return (cudaError_t)broken; }
static int do_nothing(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **p, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  *p = (void *)do_nothing;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char *name, void **p, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result) {
  return cudaGetDriverEntryPointByVersion(name, p, 0, flags, result);
}

// ---- cuBLAS: what is asked before a product

int cublasGetMathMode(void *h, int *mode) {
  *mode = 0;
  return 0;
}
int cublasGetPointerMode_v2(void *h, int *mode) {
  *mode = 0;
  return 0;
}
int cublasGetStream_v2(void *h, void **stream) {
  *stream = 0;
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int requested,
                                   void *results, int *count) {
  memset(results, 0, 64);
  *count = 1;
  return 0;
}
size_t cublasLtGetVersion(void) { return 130200; }
