// What every kernel shares: views of strided tensors, division by extents that the host prepared, blending with alpha
// and beta, and grid-stride loops. A linear index becomes an offset by dividing by one extent per dimension; since a
// 64-bit division is slow, the host passes each extent with the factor and shift that turn the division into a
// multiplication.
#pragma once

#include <cstdint>

#include "dnncore/common/numeric.cuh"

namespace dnncore {

using int32 = std::int32_t;
using int64 = std::int64_t;
using uint32 = std::uint32_t;
using uint64 = std::uint64_t;

// Most dimensions of a tensor; MAX_NDIM in dnncore/descriptors/tensor.py.
constexpr int kMaxNdim = 8;
constexpr int kMaxSpatial = kMaxNdim - 2;

// A divisor that the host knows; mirrored by DIVISOR in dnncore/cuda/params.py. With shift = ceil(log2(value)) and
// magic = ceil(2^(63 + shift) / value), (number * magic) >> (63 + shift) is the exact quotient of every number below
// 2^63.
struct Divisor {
  int64 value;
  uint64 magic;
  int32 shift;
};

// The same for numbers below 2^31, with 31 in place of 63; mirrored by SMALL_DIVISOR in dnncore/cuda/params.py.
struct SmallDivisor {
  int32 value;
  uint32 magic;
  int32 shift;
};

// Extents, and strides in elements; mirrored by TENSOR_VIEW in dnncore/cuda/params.py. Dimensions from ndim on have
// extent 1 and stride 0.
struct TensorView {
  Divisor shape[kMaxNdim];
  int64 strides[kMaxNdim];
  int32 ndim;
};

// The blending factors, first in every parameter struct; mirrored by BLEND in dnncore/cuda/params.py.
struct Blend {
  double alpha;
  double beta;
};

// Quotient and remainder of non-negative numbers. A 64-bit division takes about four times as long as a 32-bit one, and
// nearly every tensor is small enough for the latter. The branch is uniform except in a warp whose numbers straddle
// 2^32.
struct QuotientRemainder {
  int64 quotient;
  int64 remainder;
};

__device__ __forceinline__ QuotientRemainder divide(int64 number, int64 divisor) {
  if (((number | divisor) >> 32) == 0) {
    const uint32 quotient = static_cast<uint32>(number) / static_cast<uint32>(divisor);
    return {quotient, static_cast<int64>(static_cast<uint32>(number) - quotient * static_cast<uint32>(divisor))};
  }
  const int64 quotient = number / divisor;
  return {quotient, number - quotient * divisor};
}

// The same by a multiplication: there is no branch and no call, and so no registers are saved around one.
__device__ __forceinline__ QuotientRemainder divide(int64 number, const Divisor& divisor) {
  const int64 quotient = static_cast<int64>(__umul64hi(static_cast<uint64>(number) << 1, divisor.magic) >> divisor.shift);
  return {quotient, number - quotient * divisor.value};
}

struct SmallQuotientRemainder {
  int32 quotient;
  int32 remainder;
};

__device__ __forceinline__ SmallQuotientRemainder divide(int32 number, const SmallDivisor& divisor) {
  const int32 quotient = static_cast<int32>(__umulhi(static_cast<uint32>(number) << 1, divisor.magic) >> divisor.shift);
  return {quotient, number - quotient * divisor.value};
}

// Offset, in elements, of the element with a given index in row-major order.
__device__ __forceinline__ int64 offset_of(const TensorView& view, int64 index) {
  int64 offset = 0;
#pragma unroll 1  // most views are down to one or two dimensions; eight copies would fill the instruction cache
  for (int axis = view.ndim - 1; axis > 0; --axis) {
    const QuotientRemainder split = divide(index, view.shape[axis]);
    offset += split.remainder * view.strides[axis];
    index = split.quotient;
  }
  return offset + index * view.strides[0];
}

// The first item of this thread, and the distance to its next one, for grid-stride loops over one dimension.
__device__ __forceinline__ int64 grid_index() { return static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64 grid_size() { return static_cast<int64>(gridDim.x) * blockDim.x; }

// alpha * value + beta * the old output, in the compute type. With beta 0 the output is not read and may hold anything,
// NaN included.
template <typename T>
__device__ __forceinline__ T blended(const Blend& blend, Compute<T> value, const T* output) {
  using C = Compute<T>;
  const C scaled = static_cast<C>(blend.alpha) * value;
  return narrow<T>(blend.beta == 0.0 ? scaled : scaled + static_cast<C>(blend.beta) * widen(*output));
}

// Write the blended value.
template <typename T>
__device__ __forceinline__ void blend_into(const Blend& blend, Compute<T> value, T* output) {
  *output = blended(blend, value, output);
}

}  // namespace dnncore
