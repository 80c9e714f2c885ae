// What pooling does with a window.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// kIndices is a maximum whose place in the plane is kept: written forward, and backward read in place of x.
enum class PoolingMode { kMax, kIndices, kAverage };

// Whether a value becomes the maximum in place of one before it: of equals the first stays, and NaN is larger than everything else,
// or not larger than anything where it is not to be propagated.
template <typename C>
__device__ __forceinline__ bool exceeds(C value, C best, bool propagates_nan) {
  return value > best || (propagates_nan && value != value && best == best);
}

}  // namespace dnncore
