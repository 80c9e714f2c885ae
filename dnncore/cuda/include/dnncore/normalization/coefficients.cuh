// Scales and biases of neighbouring elements, each of which has its own, as layer normalisation's have.
#pragma once

#include "dnncore/common/loaded.cuh"

namespace dnncore {

// Those of a vector's elements; stored as x is where `narrow`, else in the compute type; `otherwise` where there are none.
template <typename T, int kWidth>
__device__ __forceinline__ void load_each(
    Compute<T> (&values)[kWidth], const void* from, bool narrow, int32 vector, Compute<T> otherwise
) {
  if (from == nullptr) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = otherwise;
  } else if (narrow) {
    const auto found = static_cast<const Vector<T, kWidth>*>(from)[vector];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = widen(found.at[i]);
  } else {
    const auto found = static_cast<const Vector<Compute<T>, kWidth>*>(from)[vector];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = found.at[i];
  }
}

}  // namespace dnncore
