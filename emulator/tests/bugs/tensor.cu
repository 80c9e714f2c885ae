// Seeded bugs of asynchronous units: bulk copies, tensor copies, wgmma. With bug == 0 every kernel is right.
#include <cuda.h>
#include <cuda_fp16.h>

#include "ptx.cuh"

__device__ __forceinline__ void load_box(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void load_bulk(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void store_bulk(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

enum Bug { kNone, kFirst, kSecond };

// 32 floats in, by one bulk copy. First bug: more bytes expected than come. Second: nobody waits.
extern "C" __global__ void bulk_in(const float* x, float* y, int bug) {
  __shared__ alignas(128) float tile[32];
  __shared__ alignas(8) uint64_t barrier;
  if (threadIdx.x == 0) init_barrier(&barrier, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    expect_bytes(&barrier, bug == kFirst ? 256 : 128);
    load_bulk(tile, x, 128, &barrier);
  }
  if (bug != kSecond) wait_for_phase(&barrier, 0);
  y[threadIdx.x] = tile[threadIdx.x];
}

// 32 floats out. First bug: no proxy fence. Second: the source is written again before it has been read. Third: nobody waits at the end.
extern "C" __global__ void bulk_out(const float* x, float* y, int bug) {
  __shared__ alignas(128) float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  if (bug != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    store_bulk(y, tile, 128);
    if (bug < 2) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
  __syncthreads();
  if (bug != 3) tile[threadIdx.x] = 0.f;
  if (threadIdx.x == 0 && bug != 3) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Tiles of 16 x 16 halfs through a ring of two, summed by columns. First bug: the producer does not wait until a tile has been read.
extern "C" __global__ void ring(const __grid_constant__ CUtensorMap map, float* y, int rounds, int bug) {
  __shared__ alignas(128) __half tiles[2][16 * 16];
  __shared__ alignas(8) uint64_t full[2];
  __shared__ alignas(8) uint64_t empty[2];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) init_barrier(&full[i], 1), init_barrier(&empty[i], 32);
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    for (int r = 0; r < rounds; ++r) {
      const int s = r & 1, parity = r >> 1 & 1;
      if (!bug) wait_for_phase(&empty[s], parity ^ 1);
      expect_bytes(&full[s], 512);
      load_box(tiles[s], &map, 0, r * 16, &full[s]);
    }
  } else if (threadIdx.x < 32) {
    float sum = 0.f;
    for (int r = 0; r < rounds; ++r) {
      const int s = r & 1, parity = r >> 1 & 1;
      wait_for_phase(&full[s], parity);
      for (int i = 0; i < 16; ++i) sum += __half2float(tiles[s][i * 16 + threadIdx.x % 16]);
      arrive(&empty[s]);
    }
    y[threadIdx.x] = sum;
  }
}

// One box. First bug: its destination reaches beyond the variable. Second: the destination is not 128-byte aligned.
extern "C" __global__ void box(const __grid_constant__ CUtensorMap map, float* y, int bug) {
  __shared__ alignas(8) uint64_t barrier;
  __shared__ alignas(128) __half tile[16 * 16 + 64];
  if (threadIdx.x == 0) init_barrier(&barrier, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    expect_bytes(&barrier, 512);
    load_box(tile + (bug == kFirst ? 128 : bug == kSecond ? 8 : 0), &map, 0, 0, &barrier);
  }
  wait_for_phase(&barrier, 0);
  y[threadIdx.x] = __half2float(tile[threadIdx.x]);
}

__device__ __forceinline__ uint64_t descriptor(const void* p) {  // K-major, 128-byte swizzle, groups of 8 rows 1024 bytes apart
  return static_cast<uint64_t>((shared_address(p) & 0x3ffff) >> 4) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// D = A * B, 64 x 8 x 16, operands from memory in 128-byte rows. First bug: no proxy fence. Second: an operand is overwritten between issue
// and wait. Third: no wait.
extern "C" __global__ void __launch_bounds__(128) product(const __half* a, const __half* b, float* y, int bug) {
  __shared__ alignas(1024) __half as[64 * 64];
  __shared__ alignas(1024) __half bs[8 * 64];
  for (int i = threadIdx.x; i < 64 * 64; i += 128) as[i] = a[i];
  for (int i = threadIdx.x; i < 8 * 64; i += 128) bs[i] = b[i];
  if (bug != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor(as)), "l"(descriptor(bs)));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (bug == 2) bs[threadIdx.x] = __half(0.f);
  if (bug != 3) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = d[i];
}
