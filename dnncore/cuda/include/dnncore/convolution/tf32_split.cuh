// Elements of fp32 as two of tf32 (3xTF32; Ootomo and Yokota, 2022). Of the four products of two such pairs the one of both rests, at
// most 2^-22 of the whole, is not computed.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore::tf32_split {

// The nearest of tf32 to an element of fp32, and what is left. Beyond the largest of tf32 all of it is left, so that an infinity meets
// one part of a finite factor, the nearest, and no difference; a NaN stays one, whatever its last bits are.
struct Split {
  uint32 nearest;
  uint32 rest;

  __device__ __forceinline__ explicit Split(uint32 element) {
    constexpr uint32 kBits = 0xffffe000U, kHalf = 0x1000U, kLargest = 0x7f7fe000U;
    const float value = __uint_as_float(element);
    const bool is_ordinary = fabsf(value) <= __uint_as_float(kLargest);
    nearest = is_ordinary ? (element + kHalf) & kBits : 0U;
    rest = __float_as_uint(value - __uint_as_float(nearest));
  }
};

// The same of an element that is ordinary, in three instructions instead of five. What is none is not asked for, and makes NaN of every
// product it is in: `nearest` is then infinite or 0 and `rest` the opposite infinity or NaN.
struct OrdinarySplit {
  uint32 nearest;
  uint32 rest;

  __device__ __forceinline__ explicit OrdinarySplit(uint32 element)
      : nearest((element + 0x1000U) & 0xffffe000U),
        rest(__float_as_uint(__uint_as_float(element) - __uint_as_float(nearest))) {}
};

}  // namespace dnncore::tf32_split
