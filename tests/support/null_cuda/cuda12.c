// What is another function, or another structure, for libraries built with CUDA 12 (faiss).
#include <string.h>
#include <cuda_runtime_api.h>
#define PROPERTIES properties
#include "properties.h"
#undef cudaGetDeviceProperties
extern cudaError_t cudaMemGetInfo(size_t *, size_t *);
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int d) {
  size_t available, total = 0;
  cudaMemGetInfo(&available, &total);
  properties(p, total);
  return cudaSuccess;
}
