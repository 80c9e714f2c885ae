// What pooling does with a window, and which of two values is the maximum.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// kIndices is a maximum whose place in the plane is kept: written forward, and read backward in place of x.
enum class PoolingMode { kMax, kIndices, kAverage };

// Whether a value replaces the maximum found before it: of equal values the first stays. NaN is larger than everything
// else or, where it is not to be propagated, larger than nothing.
template <typename C>
__device__ __forceinline__ bool exceeds(C value, C best, bool propagates_nan) {
  return value > best || (propagates_nan && value != value && best == best);
}

}  // namespace dnncore
