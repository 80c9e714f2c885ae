// What the kernels of the checks share: addresses of shared memory, mbarriers with bounded waits, fences.
#include <cstdint>

#define KERNEL extern "C" __global__ void

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

struct alignas(64) TensorMap {
  u64 words[16];
};

extern __shared__ __align__(1024) u8 dynamic_shared[];

__device__ inline u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

__device__ inline void mbarrier_init(u64* barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

// Makes initialised mbarriers visible to the asynchronous units and to the cluster.
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

__device__ inline u64 mbarrier_arrive(u64* barrier) {
  u64 state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(shared_address(barrier)) : "memory");
  return state;
}

__device__ inline void mbarrier_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Waits for the end of the phase of that parity. What never ends is a trap, not a hang.
__device__ inline void mbarrier_wait(u64* barrier, u32 parity) {
  for (u32 attempt = 0; attempt < 20000; ++attempt) {
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    if (done) return;
  }
  asm volatile("trap;");
}

__device__ inline u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The same place in the shared memory of another block of the cluster.
__device__ inline u32 map_shared(u32 address, u32 rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

