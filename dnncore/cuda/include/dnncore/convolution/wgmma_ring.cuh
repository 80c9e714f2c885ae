// A ring of stages in shared memory between a producer, one thread that has the copy engine fill them, and consumers of four
// warps each, whose products read them (drawn in wgmma.cuh).
#pragma once

#include <type_traits>

#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/mbarrier.cuh"
#include "dnncore/ptx/warpgroup.cuh"
#include "dnncore/ptx/warpgroup_matrix.cuh"

namespace dnncore::wgmma {

inline constexpr int kSlab = 64;                                // elements of a row: 128 bytes
inline constexpr int kConsumers = 2;                            // where a kernel does not say more
inline constexpr int kConsumerFilters = 64;

// How many products of the units a step begins.
template <int kCount>
using Products = std::integral_constant<int, kCount>;

struct Row {
  unsigned char bytes[kMatrixRowBytes];
};

// Where in the ring, and the parity of the phase that its barriers are in.
template <int kStages>
struct Position {
  int stage = 0;
  uint32 parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ int before() const { return stage == 0 ? kStages - 1 : stage - 1; }
};

template <int kStages, int kConsumers = wgmma::kConsumers>
struct Ring {
  using At = Position<kStages>;

  Mbarrier filled[kStages];  // its bytes have landed
  Mbarrier free[kStages];    // the consumers' warps have multiplied it

  // By one thread, which publishes them.
  __device__ __forceinline__ void make() {
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(filled[stage], 1);
      make_barrier(free[stage], kConsumers * kWarpgroup / 32);
    }
  }

  // For the producer, where all stages are free: as if the phase before had ended.
  static __device__ __forceinline__ At first_free() { return {0, 1}; }

  // The barrier at which a stage's bytes are to arrive, once its products have ended.
  __device__ __forceinline__ Mbarrier& begin_to_fill(const At& at, uint32 nbytes) {
    wait(free[at.stage], at.parity);
    arrive_expecting(filled[at.stage], nbytes);
    return filled[at.stage];
  }

  // A consumer's products of so many stages: multiply(stage, is_first) begins those of one, while the ones before run.
  template <typename Multiply>
  __device__ __forceinline__ void multiply_each(At& at, int steps, const Multiply& multiply) {
    multiply_more(at, steps, false, multiply);
    end_products(at);
  }

  // The same in runs, of which each but the first `goes_on`, until end_products.
  template <typename Multiply>
  __device__ __forceinline__ void multiply_more(At& at, int steps, bool goes_on, const Multiply& multiply) {
    for (int step = 0; step < steps; ++step) {
      wait(filled[at.stage], at.parity);
      fence_sums();
      multiply(at.stage, !goes_on && step == 0);
      commit_products();
      wait_for_products<1>();  // those of the step before
      if (goes_on || step > 0) release(at.before());
      at.advance();
    }
  }
  __device__ __forceinline__ void end_products(const At& at) {
    wait_for_products<0>();
    release(at.before());
  }

  // A consumer that multiplies nothing lets so many stages pass.
  __device__ __forceinline__ void pass_each(At& at, int steps) {
    for (int step = 0; step < steps; ++step) {
      wait(filled[at.stage], at.parity);
      release(at.stage);
      at.advance();
    }
  }

  // By all threads of a consumer, which have read a stage.
  __device__ __forceinline__ void release(int stage) {
    if (threadIdx.x % 32 == 0) arrive(free[stage]);
  }
};

// How a block with a ring begins: begin(), by one thread, makes its barriers; then one thread of the last warpgroup produces, and
// each of the others, which take the registers that this one leaves, consumes: consume(consumer).
template <int kConsumers, int kProducerRegisters, int kConsumerRegisters, typename Begin, typename Produce, typename Consume>
__device__ __forceinline__ void produce_and_consume(const Begin& begin, const Produce& produce, const Consume& consume) {
  if (threadIdx.x == 0) {
    begin();
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  const int warpgroup = warpgroup_index();
  if (warpgroup == kConsumers) {
    leave_registers<kProducerRegisters>();
    if (threadIdx.x % kWarpgroup == 0) produce();
  } else {
    take_registers<kConsumerRegisters>();
    consume(warpgroup);
  }
}

}  // namespace dnncore::wgmma
