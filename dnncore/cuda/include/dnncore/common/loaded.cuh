// Neighbouring elements that one instruction reads or writes (Vector), and elements on their way from memory (Loaded,
// LoadedOne). The latter hold the bits as they are stored: a thread first issues all of its loads and widens the
// elements afterwards, because widening one right behind its load would wait for that load before the next is issued.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

template <typename T, int kVector>
struct alignas(kVector * sizeof(T)) Vector {
  T at[kVector];
};

// The type that one load of kBytes fills.
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

  // Reads only where there is an element; elsewhere the value is 0, as padding is.
  __device__ __forceinline__ void load_if(bool there, const T* place) {
    word = {};
    if (there) word = *reinterpret_cast<const decltype(word)*>(place);
  }
  __device__ __forceinline__ void widen_into(Compute<T> (&values)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = widen(reinterpret_cast<const T*>(&word)[i]);
  }
};

// One element on its way from memory.
template <typename T>
struct LoadedOne {
  using Type = typename Word<sizeof(T)>::Type;
  Type word = {};

  __device__ __forceinline__ static LoadedOne of(T value) { return {*reinterpret_cast<const Type*>(&value)}; }
  // Reads only where there is an element; elsewhere `word` keeps its value.
  __device__ __forceinline__ void load_if(bool there, const T* place) {
    if (there) word = *reinterpret_cast<const Type*>(place);
  }
  __device__ __forceinline__ Compute<T> widened() const { return widen(*reinterpret_cast<const T*>(&word)); }
};

}  // namespace dnncore
