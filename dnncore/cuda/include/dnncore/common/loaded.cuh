// Neighbouring elements that are read or written at once, and elements on their way: as they are stored, so that all loads of a
// thread are under way before the first of them is widened, which would wait for it.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

template <typename T, int kVector>
struct alignas(kVector * sizeof(T)) Vector {
  T at[kVector];
};

// What one load brings.
template <int kBytes>
struct Word;
template <>
struct Word<1> {
  using Type = std::uint8_t;
};
template <>
struct Word<2> {
  using Type = std::uint16_t;
};
template <>
struct Word<4> {
  using Type = uint32;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};

template <typename T, int kVector>
struct Loaded {
  typename Word<kVector * sizeof(T)>::Type word = {};

  // Nothing is read where there is nothing: the padding is 0.
  __device__ __forceinline__ void load_if(bool there, const T* place) {
    word = {};
    if (there) word = *reinterpret_cast<const decltype(word)*>(place);
  }
  __device__ __forceinline__ void widen_into(Compute<T> (&values)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = widen(reinterpret_cast<const T*>(&word)[i]);
  }
};

// One element on its way.
template <typename T>
struct LoadedOne {
  using Type = typename Word<sizeof(T)>::Type;
  Type word = {};

  __device__ __forceinline__ static LoadedOne of(T value) { return {*reinterpret_cast<const Type*>(&value)}; }
  // What it holds stays where nothing is.
  __device__ __forceinline__ void load_if(bool there, const T* place) {
    if (there) word = *reinterpret_cast<const Type*>(place);
  }
  __device__ __forceinline__ Compute<T> widened() const { return widen(*reinterpret_cast<const T*>(&word)); }
};

}  // namespace dnncore
