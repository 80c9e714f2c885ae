// Seeded races: within a warp, a block and a grid. With bug == 0 every kernel is right.
#include <cstdint>

extern "C" __global__ void missing_barrier(const float* x, float* y, int bug) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  if (!bug) __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}

// Each thread writes two halves of a word with two instructions, and reads somebody's first one.
extern "C" __global__ void missing_barrier_of_halves(const float* x, float* y, int bug) {
  __shared__ uint32_t tile[32];
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(&tile[threadIdx.x]));
  const auto low = static_cast<unsigned short>(x[threadIdx.x]);
  asm volatile("st.shared.u16 [%0], %1;\nst.shared.u16 [%0 + 2], %1;" ::"r"(at), "h"(low) : "memory");
  if (!bug) __syncthreads();
  unsigned short other;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(other) : "r"(at ^ 4) : "memory");
  y[threadIdx.x] = other;
}

// The second barrier of a loop: the next round's writes meet this round's reads.
extern "C" __global__ void missing_second_barrier(const float* x, float* y, int rounds, int bug) {
  __shared__ float tile[64];
  float sum = 0.f;
  for (int r = 0; r < rounds; ++r) {
    tile[threadIdx.x] = x[r * 64 + threadIdx.x];
    __syncthreads();
    sum += tile[63 - threadIdx.x];
    if (!bug) __syncthreads();
  }
  y[threadIdx.x] = sum;
}

extern "C" __global__ void missing_syncwarp(const float* x, float* y, int bug) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  if (!bug) __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x ^ 1];
}

extern "C" __global__ void blocks_share_a_word(float* y, int bug) {
  if (threadIdx.x == 0) y[bug ? 0 : blockIdx.x] = static_cast<float>(blockIdx.x);
}

extern "C" __global__ void missing_atomic(int* count, int bug) {
  if (bug) {
    *count += 1;
  } else {
    atomicAdd(count, 1);
  }
}

// The last block to arrive sums what the others have written: the fence makes their writes known.
extern "C" __global__ void last_block_sums(const float* x, float* partial, unsigned* ticket, float* y, int bug) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = x[blockIdx.x];
    if (!bug) __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    if (!bug) __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0.f;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
    *y = sum;
  }
}

// Two warps read a word that a third writes next. It waits for the last reader alone: the first one's read is remembered too.
extern "C" __global__ void first_reader_not_waited_for(const float* x, float* y, int bug) {
  __shared__ float word;
  const int warp = threadIdx.x / 32, threads = bug ? 64 : 96;
  const bool first_lane = threadIdx.x % 32 == 0;
  if (warp == 2 && first_lane) word = *x;
  __syncthreads();
  if (warp < 2) {
    if (first_lane) y[warp] = word;
    if (warp == 1 || !bug) asm volatile("bar.arrive 1, %0;" ::"r"(threads) : "memory");
  } else {
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    if (first_lane) word = 1.f;
  }
}

// One warp hands data to another through a named barrier.
extern "C" __global__ void arrive_too_early(const float* x, float* y, int bug) {
  __shared__ float tile[32];
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    if (bug) asm volatile("bar.arrive 1, 64;" ::: "memory");
    tile[lane] = x[lane];
    if (!bug) asm volatile("bar.arrive 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 64;" ::: "memory");
    y[lane] = tile[31 - lane];
  }
}

extern "C" __global__ void copy_without_wait(const float* x, float* y, int bug) {
  __shared__ float tile[32];
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(&tile[threadIdx.x]));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + threadIdx.x) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  if (!bug) asm volatile("cp.async.wait_group 0;" ::: "memory");
  y[threadIdx.x] = tile[threadIdx.x];
}

// A ring of two tiles: the copy of the round after next begins while other threads still read.
extern "C" __global__ void copy_into_a_tile_in_use(const float* x, float* y, int rounds, int bug) {
  __shared__ float tile[2][64];
  auto copy = [&](int round) {
    if (round < rounds) {
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(&tile[round & 1][threadIdx.x]));
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + round * 64 + threadIdx.x) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float sum = 0.f;
  copy(0);
  for (int r = 0; r < rounds; ++r) {
    copy(r + 1);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    sum += tile[r & 1][63 - threadIdx.x];
    if (!bug) __syncthreads();
  }
  y[threadIdx.x] = sum;
}
