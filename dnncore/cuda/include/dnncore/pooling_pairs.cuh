// Maxima of packed elements of 16 bits, two at a time, as pooling takes them.
#pragma once

#include <type_traits>

#include "dnncore/common/tensor.cuh"
#include "dnncore/ptx/packed_extremum.cuh"

namespace dnncore {

// The larger ones of two packed elements, NaN where one is NaN or, if that is not propagated, a number where there is one.
template <bool kPropagatesNan>
__device__ __forceinline__ uint32 larger_pair(float16, uint32 a, uint32 b) {
  return kPropagatesNan ? larger_f16x2(a, b) : larger_number_f16x2(a, b);
}

template <bool kPropagatesNan>
__device__ __forceinline__ uint32 larger_pair(bfloat16, uint32 a, uint32 b) {
  return kPropagatesNan ? larger_bf16x2(a, b) : larger_number_bf16x2(a, b);
}

// Two minus infinities: the maximum where everything is NaN and that is not propagated.
template <typename T>
constexpr uint32 kLeastPair = std::is_same_v<T, float16> ? 0xFC00FC00 : 0xFF80FF80;

}  // namespace dnncore
