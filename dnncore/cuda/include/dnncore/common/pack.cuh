// Sixteen bytes of neighbouring elements, the most that a thread reads or writes with one instruction. A pack may be
// incomplete, at the end of a row, or its lanes may lie `step` elements apart; load_pack and store_pack then access one
// lane at a time, and otherwise, where the lanes are complete, neighbours and aligned, all of them at once.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

template <typename T>
struct alignas(16) Pack {
  static constexpr int kWidth = 16 / sizeof(T);
  T lanes[kWidth];
};

template <typename T>
__device__ __forceinline__ bool is_whole(const T* place, int64 lanes) {
  return lanes >= Pack<T>::kWidth && reinterpret_cast<uint64>(place) % sizeof(Pack<T>) == 0;
}

// Load the lanes that exist, each `step` elements behind the one before: with one instruction where they are neighbours
// and aligned. The other lanes are zeros.
template <typename T>
__device__ __forceinline__ Pack<T> load_pack(const T* place, int64 step, int64 lanes) {
  Pack<T> pack{};
  if (step == 1 && is_whole(place, lanes)) return *reinterpret_cast<const Pack<T>*>(place);
#pragma unroll
  for (int lane = 0; lane < Pack<T>::kWidth; ++lane) {
    if (lane < lanes) pack.lanes[lane] = place[lane * step];
  }
  return pack;
}

template <typename T>
__device__ __forceinline__ void store_pack(const Pack<T>& pack, T* place, int64 step, int64 lanes) {
  if (step == 1 && is_whole(place, lanes)) {
    *reinterpret_cast<Pack<T>*>(place) = pack;
    return;
  }
#pragma unroll
  for (int lane = 0; lane < Pack<T>::kWidth; ++lane) {
    if (lane < lanes) place[lane * step] = pack.lanes[lane];
  }
}

}  // namespace dnncore
