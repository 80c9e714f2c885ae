// Seeded bugs of memory: bounds, alignment, lifetime, initialisation, state spaces. With bug == 0 every kernel is right.
#include <cstdint>

// n elements; one thread goes one too far.
extern "C" __global__ void read_beyond(const float* x, float* y, int n, int bug) {
  int i = threadIdx.x;
  if (i < n) y[i] = x[i + (bug && i == n - 1)];
}

extern "C" __global__ void write_beyond(float* y, int n, int bug) {
  int i = threadIdx.x;
  if (i < n + bug) y[i] = 1.f;
}

extern "C" __global__ void static_shared_beyond(float* y, int bug) {
  __shared__ float tile[32];
  __shared__ float next[32];
  next[threadIdx.x] = 2.f;
  tile[threadIdx.x + bug] = 1.f;
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x] + next[threadIdx.x];
}

extern "C" __global__ void dynamic_shared_beyond(float* y, int bug) {
  extern __shared__ float tile[];  // launched with 32 floats
  tile[threadIdx.x + bug] = 1.f;
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}

// Launched once with 4096 bytes, which is right, and then with 128: the first launch must not leave its own behind.
extern "C" __global__ void shared_of_an_earlier_launch(float* y, int index) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = 1.f;
  if (threadIdx.x == 0) tile[index] = 1.f;
  y[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void misaligned_vector(const float* x, float* y, int bug) {
  auto four = *reinterpret_cast<const float4*>(x + bug);
  y[threadIdx.x] = four.x + four.w;
}

extern "C" __global__ void add_one(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] + 1.f; }

extern "C" __global__ void uninitialised_shared(float* y, int bug) {
  __shared__ float tile[32];
  if (threadIdx.x || !bug) tile[threadIdx.x] = 1.f;
  __syncthreads();
  y[threadIdx.x] = tile[31 - threadIdx.x];
}

// ld.global with the address of shared memory.
extern "C" __global__ void wrong_space(const float* x, float* y, int bug) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 3.f;
  __syncwarp();
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(bug ? tile + threadIdx.x : x + threadIdx.x) : "memory");
  y[threadIdx.x] = v + tile[threadIdx.x];
}

extern "C" __global__ void write_constant_address(float* y, int bug) {
  if (bug) y = reinterpret_cast<float*>(uintptr_t{16});
  y[threadIdx.x] = 1.f;
}
