// Planes of images whose columns are innermost, in shared memory with the zeros that pad them. A row is cut into segments of
// up to kSegment columns, of which threads take one each.
//
//     plane of x     zeros in front (padding)              `pitch` elements from row to row, an odd number of words, so that
//                    | zeros | columns of x | zeros |      threads that read rows below one another meet in no bank
//                    zeros behind
#pragma once

#include "dnncore/convolution/depthwise.cuh"

namespace dnncore::depthwise {

constexpr int kSegment = 14;  // even; a row of 14, half of 28, a quarter of 56

// A segment as it is stored.
template <typename T>
struct Segment {
  Loaded<T, 2> pairs[kSegment / 2];

  // Reads the first `count` elements; others are 0. In pairs, `count` is even and `from` aligned for them.
  __device__ __forceinline__ void load(const T* from, int32 count, bool in_pairs) {
    if (in_pairs) {
#pragma unroll
      for (int i = 0; i < kSegment / 2; ++i) pairs[i].load_if(2 * i < count, from + 2 * i);
    } else {
      LoadedOne<T> ones[kSegment];
#pragma unroll
      for (int i = 0; i < kSegment; ++i) ones[i].load_if(i < count, from + i);
#pragma unroll
      for (int i = 0; i < kSegment; ++i) reinterpret_cast<decltype(ones[i].word)*>(&pairs[i / 2].word)[i % 2] = ones[i].word;
    }
  }
  __device__ __forceinline__ void store(T* to, int32 count) const {
#pragma unroll
    for (int i = 0; i < kSegment; ++i) {
      if (i < count) to[i] = reinterpret_cast<const T*>(&pairs[i / 2].word)[i % 2];
    }
  }
  __device__ __forceinline__ void widen_into(Compute<T> (&values)[kSegment]) const {
#pragma unroll
    for (int i = 0; i < kSegment / 2; ++i) {
      Compute<T> two[2];
      pairs[i].widen_into(two);
      values[2 * i] = two[0];
      values[2 * i + 1] = two[1];
    }
  }
};

// Zeros in whole vectors of shared memory.
__device__ __forceinline__ void clear_vectors(void* from, int32 bytes) {
  for (int32 i = threadIdx.x; i < bytes / 16; i += static_cast<int32>(blockDim.x)) {
    static_cast<uint4*>(from)[i] = make_uint4(0, 0, 0, 0);
  }
}

// What the taps of a row of a filter meet of a segment, from shared memory; the place is even.
template <typename T, int kFilter>
__device__ __forceinline__ void widen_row(const T* place, Compute<T> (&values)[kSegment + kFilter - 1]) {
  constexpr int kWord = sizeof(T) < 4 ? 4 / sizeof(T) : 1, kAll = kSegment + kFilter - 1;
  static_assert(kAll % kWord == 0);
  Loaded<T, kWord> words[kAll / kWord];
#pragma unroll
  for (int i = 0; i < kAll / kWord; ++i) words[i].load_if(true, place + i * kWord);
#pragma unroll
  for (int i = 0; i < kAll / kWord; ++i) {
    Compute<T> some[kWord];
    words[i].widen_into(some);
#pragma unroll
    for (int j = 0; j < kWord; ++j) values[i * kWord + j] = some[j];
  }
}

}  // namespace dnncore::depthwise
