// The largest elements of each row, where few are wanted: in the order of top_k.cuh, but a row is looked at twice, however many that
// are. A team, a warp or a block, has a row.
//
//    first    each thread finds the largest of its elements; of the lanes of a warp, the count-th largest of these is no larger than
//             the count-th largest element of the row: a bound, and of a block the largest of its warps' bounds
//    then     elements that are not below the bound, little more than are wanted, are candidates; a candidate's place is the number of
//             those that come before it
//
// A row of up to 32 elements per thread stays in registers; of longer ones the second look finds most in the level-2 cache. Where
// candidates are too many, since many elements are equal, they are found one after the other instead, as top_k.cuh does.
//
// Elements are compared as integers: the bits of a number, mirrored where it is negative, with one NaN for all, which comes before all
// numbers, and one zero.
#pragma once

#include "dnncore/top_k.cuh"

namespace dnncore {

constexpr int kTopKThreads = 128;    // of a block of teams that are warps; _WARPS_THREADS in dnncore/cuda/top_k.py
constexpr int kTopKOfRow = 256;      // of a team that is a block; _THREADS there
constexpr int kTopKKept = 32;        // elements that a thread keeps; _KEPT there
constexpr int kTopKCandidates = 256; // of a team, at most

__device__ __forceinline__ int32 comparable(float value) {
  const int32 bits = __float_as_int(value + 0.0f);  // of -0 and 0 it is 0
  if (value != value) return 0x7fffffff;
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

// What lies behind the end of a row: below all elements.
constexpr int32 kNoElement = static_cast<int32>(0x80000000);

template <typename T, bool kOfWarp>
struct TopKTeam {
  static constexpr int kThreads = kOfWarp ? kWarpSize : kTopKOfRow;
  static constexpr int kWarps = kThreads / kWarpSize;

  struct Shared {
    int32 bounds[kWarps];
    int32 found;
    int32 keys[kTopKCandidates];
    int32 indices[kTopKCandidates];
  };

  const TopKParams& params;
  Shared& shared;
  const T* x;
  int thread;
  int lane;
  int32 kept[kTopKKept];

  __device__ __forceinline__ TopKTeam(const TopKParams& params, Shared& shared)
      : params(params), shared(shared), thread(threadIdx.x % kThreads), lane(threadIdx.x % kWarpSize) {}

  __device__ __forceinline__ static void meet() {
    if constexpr (kOfWarp) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // visit(key, index) for this thread's elements; all threads of a team visit equally often, some of them nothing. Rows that are kept
  // are read the first time.
  template <bool kAgain, typename Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) {
    const auto at = [&](int64 index) { return comparable(widen(x[index * params.x_step])); };
    if (params.length <= kThreads * kTopKKept) {
      if constexpr (!kAgain) {
#pragma unroll
        for (int k = 0; k < kTopKKept; ++k) {
          const int index = thread + k * kThreads;
          kept[k] = index < params.length ? at(index) : kNoElement;
        }
      }
#pragma unroll
      for (int k = 0; k < kTopKKept; ++k) {
        if (k * kThreads < params.length) visit(kept[k], thread + k * kThreads);
      }
      return;
    }
    constexpr int kAtOnce = 8;
    for (int64 first = 0; first < params.length; first += kAtOnce * kThreads) {
      int32 keys[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64 index = first + thread + k * kThreads;
        keys[k] = index < params.length ? at(index) : kNoElement;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) visit(keys[k], static_cast<int32>(first) + thread + k * kThreads);
    }
  }

  // The count-th largest of what the lanes of a warp have.
  __device__ __forceinline__ int32 bound_of_warp(int32 largest) const {
    int32 bound = kNoElement;
    for (int place = 0; place < params.count; ++place) {
      bound = __reduce_max_sync(0xffffffffu, largest);
      const uint32 those = __ballot_sync(0xffffffffu, largest == bound);
      if (lane == __ffs(static_cast<int>(those)) - 1) largest = kNoElement;
    }
    return bound;
  }

  // The largest elements of the row, one after the other.
  __device__ __forceinline__ void find_in_turn(T* values, int32* indices) {
    using C = Compute<T>;
    Ranked<C> mine = next_of_mine(params, x, Ranked<C>{C(0), -1}, thread, kThreads);
    auto* const of_warps = reinterpret_cast<Ranked<C>*>(shared.keys);
    for (int64 place = 0; place < params.count; ++place) {
      Ranked<C> best = first_of_warp(mine);
      if constexpr (!kOfWarp) {
        meet();
        if (lane == 0) of_warps[thread / kWarpSize] = best;
        meet();
        best = first_of_warp(lane < kWarps ? of_warps[lane] : Ranked<C>{C(0), -1});
      }
      if (thread == 0) {
        blend_into(params.blend, best.value, values + place * params.values_step);
        indices[place * params.indices_step] = best.index;
      }
      if (mine.index == best.index) mine = next_of_mine(params, x, best, thread, kThreads);
    }
  }

  __device__ __forceinline__ void find(int64 row) {
    x = static_cast<const T*>(params.x) + offset_of(params.x_view, row);
    T* const values = static_cast<T*>(params.values) + offset_of(params.values_view, row);
    int32* const indices = params.indices + offset_of(params.indices_view, row);
    int32 largest = kNoElement;
    for_each<false>([&](int32 key, int32) { largest = max(largest, key); });
    int32 bound = bound_of_warp(largest);
    if (thread == 0) shared.found = 0;
    if constexpr (!kOfWarp) {
      if (lane == 0) shared.bounds[thread / kWarpSize] = bound;
      meet();
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) bound = max(bound, shared.bounds[warp]);
    }
    meet();
    for_each<true>([&](int32 key, int32 index) {
      const bool is_candidate = key >= bound && index < params.length;
      const uint32 those = __ballot_sync(0xffffffffu, is_candidate);
      if (those == 0) return;
      int32 place = 0;
      if (lane == 0) place = atomicAdd(&shared.found, __popc(those));
      place = __shfl_sync(0xffffffffu, place, 0) + __popc(those & ((1u << lane) - 1));
      if (is_candidate && place < kTopKCandidates) {
        shared.keys[place] = key;
        shared.indices[place] = index;
      }
    });
    meet();
    const int32 found = shared.found;
    if (found > kTopKCandidates) {
      meet();
      find_in_turn(values, indices);
    } else {
      for (int32 mine = thread; mine < found; mine += kThreads) {
        const int32 key = shared.keys[mine], index = shared.indices[mine];
        int32 before = 0;
        for (int32 other = 0; other < found; ++other) {
          const int32 its = shared.keys[other];
          before += its > key || (its == key && shared.indices[other] < index) ? 1 : 0;
        }
        if (before < params.count) {
          blend_into(params.blend, widen(x[index * params.x_step]), values + before * params.values_step);
          indices[before * params.indices_step] = index;
        }
      }
    }
    meet();  // before the next row's candidates overwrite these
  }
};

template <typename T, bool kOfWarp>
__device__ void top_k_candidates(const TopKParams& params) {
  using Team = TopKTeam<T, kOfWarp>;
  constexpr int kTeams = kOfWarp ? kTopKThreads / kWarpSize : 1;
  __shared__ typename Team::Shared shared[kTeams];
  const int number = kOfWarp ? threadIdx.x / kWarpSize : 0;
  Team team(params, shared[number]);
  for (int64 row = static_cast<int64>(blockIdx.x) * kTeams + number; row < params.rows; row += static_cast<int64>(gridDim.x) * kTeams) {
    team.find(row);
  }
}

}  // namespace dnncore
