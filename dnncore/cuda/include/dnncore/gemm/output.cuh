// What C and z, which is laid out as C, are stored in. Mostly the compiler knows; of operands of int8 the launch says.
#pragma once

#include "dnncore/gemm/params.cuh"

namespace dnncore::gemm {

// Elements of a type that is known here; kFused says whether an epilogue may come before them.
template <typename T, bool kCanBeFused>
struct KnownOutput {
  using C = Compute<T>;
  static constexpr bool kFused = kCanBeFused;

  __device__ explicit KnownOutput(const Params&) {}
  __device__ C z(const Params& params, int64 offset) const { return widen(static_cast<const T*>(params.epilogue.z)[offset]); }
  __device__ void blend(const Params& params, C value, int64 offset) const {
    blend_into(params.blend, value, static_cast<T*>(params.c) + offset);
  }
};

// int8 or fp32, which are both computed in fp32: one copy of the epilogue's code for the two.
struct Int8OrFloatOutput {
  using C = float;
  static constexpr bool kFused = true;
  bool is_int8;

  __device__ explicit Int8OrFloatOutput(const Params& params) : is_int8(params.output_type == ElementType::kInt8) {}
  __device__ C z(const Params& params, int64 offset) const {
    const void* const z = params.epilogue.z;
    return is_int8 ? widen(static_cast<const int8*>(z)[offset]) : static_cast<const float*>(z)[offset];
  }
  __device__ void blend(const Params& params, C value, int64 offset) const {
    if (is_int8) {
      blend_into(params.blend, value, static_cast<int8*>(params.c) + offset);
    } else {
      blend_into(params.blend, value, static_cast<float*>(params.c) + offset);
    }
  }
};

// then(output) for operands of int8: into int32 they have no epilogue, be it C or a part's sums.
template <typename Then>
__device__ __forceinline__ void with_output_of_int8(const Params& params, const Then& then) {
  if (params.output_type == ElementType::kInt32) {
    then(KnownOutput<int32, false>(params));
  } else {
    then(Int8OrFloatOutput(params));
  }
}

}  // namespace dnncore::gemm
