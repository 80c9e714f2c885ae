// What pooling does with a window, and which of two values is the maximum.
#pragma once

#include "dnncore/common/tensor.cuh"
#include "dnncore/ptx/extremum.cuh"

namespace dnncore {

// kIndices is a maximum whose place in the plane is kept: written forward, and read backward in place of x.
enum class PoolingMode { kMax, kIndices, kAverage };

// Whether a value replaces the maximum found before it: of equal values the first stays. NaN is larger than everything
// else or, where it is not to be propagated, larger than nothing.
template <typename C>
__device__ __forceinline__ bool exceeds(C value, C best, bool propagates_nan) {
  return value > best || (propagates_nan && value != value && best == best);
}

// What windows have in some of their places: the maximum, and where it is, or the sum.
template <typename T, PoolingMode kMode, bool kPropagatesNan>
struct InWindow {
  using C = Compute<T>;
  static constexpr bool kKeepsPlaces = kMode == PoolingMode::kIndices;
  C value;
  int32 place;

  __device__ __forceinline__ static InWindow nothing() { return {kMode == PoolingMode::kAverage ? C(0) : -C(INFINITY), 0}; }
  // With places that come behind its own.
  __device__ __forceinline__ void join(const InWindow& next) {
    if constexpr (kMode == PoolingMode::kAverage) {
      value += next.value;
    } else if constexpr (kKeepsPlaces) {
      // As `exceeds` has it, by one comparison fewer: what is neither larger nor smaller nor equal is NaN.
      const bool is_larger = kPropagatesNan ? !(next.value <= value) && value == value : next.value > value;
      value = is_larger ? next.value : value;
      place = is_larger ? next.place : place;
    } else {
      value = kPropagatesNan ? larger(value, next.value) : fmaxf(value, next.value);
    }
  }
};

}  // namespace dnncore
