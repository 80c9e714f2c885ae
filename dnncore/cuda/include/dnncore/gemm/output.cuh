// How C, and z, which is laid out like C, are stored. The stores are templates over an output: KnownOutput where the
// compiler knows the element type, Int8OrFloatOutput where the operands are int8 and the launch chooses. An output
// reads z, and blends one value, or a group of kGroup neighbours, into C.
#pragma once

#include <type_traits>

#include "dnncore/gemm/params.cuh"

namespace dnncore::gemm {

// Neighbouring elements of C that are stored at once where C allows it: 16 bytes of a 16-bit type, 8 of int8, 32 of
// fp32 or int32.
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

// Elements of a type that is known here; kFused says whether an epilogue may precede the store.
template <typename T, bool kCanBeFused>
struct KnownOutput {
  using C = Compute<T>;
  static constexpr bool kFused = kCanBeFused;

  __device__ explicit KnownOutput(const Params&) {}
  __device__ C z(const Params& params, int64 offset) const { return widen(static_cast<const T*>(params.epilogue.z)[offset]); }
  __device__ void blend(const Params& params, C value, int64 offset) const {
    blend_into(params.blend, value, static_cast<T*>(params.c) + offset);
  }
  // The same for a group. z comes as it is stored, which takes fewer registers.
  using StoredZ = Group<T>;
  __device__ StoredZ z_group(const Params& params, int64 offset) const {
    return *reinterpret_cast<const StoredZ*>(static_cast<const T*>(params.epilogue.z) + offset);
  }
  __device__ void blend(const Params& params, const C (&values)[kGroup], int64 offset) const {
    blend_group(params.blend, values, static_cast<T*>(params.c) + offset);
  }
};

// int8 or fp32, both computed in fp32: the two share one copy of the epilogue's code.
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

// Call then(output) for operands of int8. An output of int32, be it C or the sums of a part, has no epilogue.
template <typename Then>
__device__ __forceinline__ void with_output_of_int8(const Params& params, const Then& then) {
  if (params.output_type == ElementType::kInt32) {
    then(KnownOutput<int32, false>(params));
  } else {
    then(Int8OrFloatOutput(params));
  }
}

// Call then(output) for sums of products of T. C is stored in T, or in the sums' type where it holds the sums of a part
// of the reduction, or for int8 in one of three types: the launch tells.
template <typename T, typename Sum, typename Then>
__device__ __forceinline__ void with_output(const Params& params, const Then& then) {
  if constexpr (std::is_same_v<T, int8>) {
    with_output_of_int8(params, then);
  } else if (std::is_same_v<T, Sum> || params.output_type != ElementType::kFloat32) {
    then(KnownOutput<T, true>(params));
  } else {
    then(KnownOutput<Sum, false>(params));
  }
}

}  // namespace dnncore::gemm
