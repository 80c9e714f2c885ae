// What C and z, which is laid out as C, are stored in. Mostly the compiler knows; of operands of int8 the launch says.
#pragma once

#include <type_traits>

#include "dnncore/gemm/params.cuh"

namespace dnncore::gemm {

// Neighbouring elements of C that are stored at once where it allows that: 16 bytes of 16 bits, 8 of int8, 32 of fp32 or int32.
inline constexpr int kGroup = 8;

template <typename T>
struct alignas(kGroup * sizeof(T) < 16 ? kGroup * sizeof(T) : 16) Group {
  T at[kGroup];
};

template <typename T, typename C>
__device__ __forceinline__ void blend_group(const Blend& blend, const C (&values)[kGroup], T* place) {
  Group<T> group;
  if (blend.beta != 0.0) group = *reinterpret_cast<const Group<T>*>(place);
#pragma unroll
  for (int e = 0; e < kGroup; ++e) group.at[e] = blended(blend, values[e], &group.at[e]);
  *reinterpret_cast<Group<T>*>(place) = group;
}

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
  // The same of a group; z as it is stored, which takes fewer registers.
  using StoredZ = Group<T>;
  __device__ StoredZ z_group(const Params& params, int64 offset) const {
    return *reinterpret_cast<const StoredZ*>(static_cast<const T*>(params.epilogue.z) + offset);
  }
  __device__ void blend(const Params& params, const C (&values)[kGroup], int64 offset) const {
    blend_group(params.blend, values, static_cast<T*>(params.c) + offset);
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
  using StoredZ = Group<float>;
  __device__ StoredZ z_group(const Params& params, int64 offset) const {
    const void* const z = params.epilogue.z;
    if (!is_int8) return *reinterpret_cast<const StoredZ*>(static_cast<const float*>(z) + offset);
    const auto stored = *reinterpret_cast<const Group<int8>*>(static_cast<const int8*>(z) + offset);
    StoredZ group;
#pragma unroll
    for (int e = 0; e < kGroup; ++e) group.at[e] = widen(stored.at[e]);
    return group;
  }
  __device__ void blend(const Params& params, const C (&values)[kGroup], int64 offset) const {
    if (is_int8) {
      blend_group(params.blend, values, static_cast<int8*>(params.c) + offset);
    } else {
      blend_group(params.blend, values, static_cast<float*>(params.c) + offset);
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

// then(output) for sums of products of T: C is stored in T, or in the sums' type where it takes those of a part of the reduction; of
// int8 the launch tells what it is.
template <typename T, typename Sum, typename Then>
__device__ __forceinline__ void with_output(const Params& params, const Then& then) {
  if constexpr (std::is_same_v<T, int8>) {
    with_output_of_int8(params, then);
  } else if (std::is_same_v<T, Sum> || params.splits == 1) {
    then(KnownOutput<T, true>(params));
  } else {
    then(KnownOutput<Sum, false>(params));
  }
}

}  // namespace dnncore::gemm
