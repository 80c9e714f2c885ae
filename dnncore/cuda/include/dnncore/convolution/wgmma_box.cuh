// How the outputs of some pixels x 64 filters lie in shared memory on their way between a consumer and the copy engine, and
// which of them a thread has. A pixel is a row, its filters one behind the other. Each of the four warps has 16 filters, and
// stores and loads those of 16 and 8 bits as four matrices of 8 x 8 elements of 16 bits at a time, transposed:
//
//   16 bits   a warp's row is two chunks of 16 bytes, and four matrices are both chunks of 16 pixels;
//   8 bits    it is one chunk, and four matrices are that of 32 pixels; of a rectangle the last two are that of 16. Their
//             elements are pairs of filters, both of which one thread must have: the even filters are the first eight rows of
//             the product, the odd ones the others.
//
// Of 32 bits each element is stored by itself. A row is as long as the swizzle goes, 32 filters, so that a box is two windows, one
// for each half of the filters; it has half as many pixels, and so as many bytes as one of 16 bits: of a rectangle the upper or the
// lower half.
#pragma once

#include <type_traits>

#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/ptx/extremum.cuh"
#include "dnncore/ptx/matrix.cuh"
#include "dnncore/ptx/matrix_store.cuh"

namespace dnncore::wgmma {

// Boxes that are runs of pixels.
template <typename T>
struct Runs {
  static constexpr int kPixels = sizeof(T) == 4 ? 48 : 96;
};

// Boxes that are rectangles of 8 x 14 pixels, two of which are the output of a patch: one below the other, or the same of two images.
// place.pixel counts the rectangles.
struct Rectangle {
  static constexpr int kWidth = 8, kHeight = 14, kPixels = kWidth * kHeight;
};
template <int kPatchImages = 1>
struct Rectangles : Rectangle {
  static constexpr int kImages = kPatchImages, kStoredWidth = kWidth, kStoredHeight = kHeight;
};
// Of 32 bits.
struct HalfRectangles : Rectangle {
  static constexpr int kImages = 1, kStoredWidth = kWidth, kStoredHeight = kHeight / 2, kPixels = kStoredWidth * kStoredHeight;
};
// The largest of each two by two pixels is stored.
struct PooledRectangles : Rectangle {
  static constexpr int kImages = 1, kStoredWidth = kWidth / 2, kStoredHeight = kHeight / 2;
};

// What one copy moves of a box is a window.
template <typename T, typename Shape>
struct Box {
  static constexpr int kWindows = sizeof(T) == 4 ? 2 : 1, kWindowFilters = kConsumerFilters / kWindows;

  T pixels[kWindows][Shape::kPixels][kWindowFilters];
};

// A thread's outputs: two filters, `first` and `next` behind it, of every fourth pair of pixels.
template <typename T, typename Shape>
class Share {
  using Box = wgmma::Box<T, Shape>;

public:
  static constexpr bool kPairsFilters = std::is_same_v<T, int8>;
  static constexpr int kNext = kPairsFilters ? 1 : 8;

  __device__ __forceinline__ Share() {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, warp = thread / 32, lane = thread % 32;
    first_ = warp * 16 + lane / 4 * (kPairsFilters ? 2 : 1);
    // Lanes 8 m to 8 m + 7 address the rows of matrix m: pixels, and of these one chunk of 16 bytes, where the swizzle puts it.
    const int pixel = kPairsFilters ? lane : lane / 16 * 8 + lane % 8;
    const int chunk = kPairsFilters ? warp : warp * 2 + lane / 8 % 2;
    const int moved = chunk ^ (kPairsFilters ? pixel / 2 % 4 : pixel % 8);
    matrices_ = (pixel * kConsumerFilters) * static_cast<int>(sizeof(T)) + moved * 16;
  }

  __device__ __forceinline__ int first() const { return first_; }

  // Add what lies in a box, times a factor.
  __device__ __forceinline__ void add(Box& box, float factor, float* sums) const {
    const auto add_of = [&](int group, const auto& elements) {
#pragma unroll
      for (int i = 0; i < kCount<decltype(elements)>; ++i) {
        float values[kOfRegister];
        widen_all(elements[i], values);
#pragma unroll
        for (int j = 0; j < kOfRegister; ++j) sums[(4 * group + i) * kOfRegister + j] += factor * values[j];
      }
    };
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32 elements[4];
      load_transposed_matrices(elements, matrices(box, group));
      add_of(group, elements);
    }
    if constexpr (kHasPair) {
      uint32 elements[2];
      load_transposed_pair(elements, matrices(box, kGroups));
      add_of(kGroups, elements);
    }
  }

  __device__ __forceinline__ void write(const float* sums, Box& box) const {
    const auto narrow_into = [&](int group, auto& elements) {
#pragma unroll
      for (int i = 0; i < kCount<decltype(elements)>; ++i) {
        elements[i] = narrow_all(sums + (4 * group + i) * kOfRegister);
      }
    };
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32 elements[4];
      narrow_into(group, elements);
      store_transposed_matrices(matrices(box, group), elements);
    }
    if constexpr (kHasPair) {
      uint32 elements[2];
      narrow_into(kGroups, elements);
      store_transposed_pair(matrices(box, kGroups), elements);
    }
  }

private:
  static constexpr int kGroupPixels = kPairsFilters ? 32 : 16;  // of four matrices
  static constexpr int kGroups = Shape::kPixels / kGroupPixels;
  static constexpr bool kHasPair = Shape::kPixels % kGroupPixels != 0;  // of matrices
  static constexpr int kOfRegister = 4 / sizeof(T);
  static_assert(Shape::kPixels % kGroupPixels == 0 || Shape::kPixels % kGroupPixels == kGroupPixels / 2);
  template <typename Array>
  static constexpr int kCount = std::extent_v<std::remove_reference_t<Array>>;

  __device__ __forceinline__ void* matrices(Box& box, int group) const {
    return reinterpret_cast<unsigned char*>(box.pixels[0][group * kGroupPixels]) + matrices_;
  }

  // A register's outputs in the order of sums: the pixels of one filter, then those of the next.
  static __device__ __forceinline__ void widen_all(uint32 elements, float (&values)[kOfRegister]) {
    if constexpr (kPairsFilters) {
      float pairs[4];
      widen_four(elements, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i / 2 + i % 2 * 2] = pairs[i];
    } else {
      values[0] = first_of<T>(elements);
      values[1] = second_of<T>(elements);
    }
  }
  static __device__ __forceinline__ uint32 narrow_all(const float* values) {
    if constexpr (kPairsFilters) {
      return narrow_four(values[0], values[2], values[1], values[3]);
    } else {
      return narrow_pair<T>(values[0], values[1]);
    }
  }

  int first_;
  int matrices_;  // bytes of a box from its beginning
};

// Of each row of eight pixels a thread has two neighbours, and the same of the next row: what is pooled is its own. Each value is stored
// and loaded by itself.
template <typename T>
class Share<T, PooledRectangles> {
  using Box = wgmma::Box<T, PooledRectangles>;

public:
  static constexpr int kNext = 8;
  static constexpr int kPooled = 2 * PooledRectangles::kStoredHeight;  // a row's value of both filters

  __device__ __forceinline__ Share() {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    first_ = thread / 32 * 16 + lane / 4, column_ = lane % 4;
  }

  __device__ __forceinline__ int first() const { return first_; }

  // The first kPooled of the sums become the largest of them: of a row `first`, then the filter kNext behind it.
  __device__ __forceinline__ void pool(float* sums) const {
#pragma unroll
    for (int row = 0; row < PooledRectangles::kStoredHeight; ++row) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* const above = sums + 8 * row + 2 * i;  // four of each row of pixels
        sums[2 * row + i] = larger(larger(above[0], above[1]), larger(above[4], above[5]));
      }
    }
  }

  __device__ __forceinline__ void add(Box& box, float factor, float* sums) const {
#pragma unroll
    for (int i = 0; i < kPooled; ++i) sums[i] += factor * first_of<T>(element(box, i)->bits);
  }

  __device__ __forceinline__ void write(const float* sums, Box& box) const {
#pragma unroll
    for (int i = 0; i < kPooled; i += 2) {
      const uint32 pair = narrow_pair<T>(sums[i], sums[i + 1]);
      element(box, i)->bits = static_cast<std::uint16_t>(pair), element(box, i + 1)->bits = static_cast<std::uint16_t>(pair >> 16);
    }
  }

private:
  // Where the swizzle puts it.
  __device__ __forceinline__ T* element(Box& box, int index) const {
    const int pixel = index / 2 * PooledRectangles::kStoredWidth + column_, filter = first_ + index % 2 * kNext;
    return &box.pixels[0][pixel][(filter / 8 ^ pixel % 8) * 8 + filter % 8];
  }

  int first_;
  int column_;
};

// Of eight pixels a thread has two neighbours, and of these the filters `first` and kNext behind it. In each of the four places, one
// for each of a thread's outputs of eight pixels, the lanes of a warp meet all banks: they have eight filters of every second pixel,
// of which the swizzle moves the chunks apart.
template <typename Shape>
class Share<float, Shape> {
  using Box = wgmma::Box<float, Shape>;

public:
  static constexpr int kNext = 8;

  __device__ __forceinline__ Share() {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    first_ = thread / 32 * 16 + lane / 4;
    const int pixel = lane % 4 * 2, filter = first_ % Box::kWindowFilters;
    element_ = (first_ / Box::kWindowFilters * Shape::kPixels + pixel) * Box::kWindowFilters +
               ((filter / kChunk) ^ pixel) * kChunk + filter % kChunk;
  }

  __device__ __forceinline__ int first() const { return first_; }

  // Add what lies in a box, times a factor.
  __device__ __forceinline__ void add(Box& box, float factor, float* sums) const {
#pragma unroll
    for (int i = 0; i < Shape::kPixels / 2; ++i) sums[i] += factor * element(box, i);
  }

  __device__ __forceinline__ void write(const float* sums, Box& box) const {
#pragma unroll
    for (int i = 0; i < Shape::kPixels / 2; ++i) element(box, i) = sums[i];
  }

private:
  static constexpr int kChunk = 4;  // elements that the swizzle keeps together
  static_assert(Shape::kPixels % 8 == 0);

  // Where the sum of an index is: of eight pixels those of the first filter, then those of the next, two chunks further on.
  __device__ __forceinline__ float& element(Box& box, int index) const {
    const int group = index / 4, is_next = index / 2 % 2, pixel = index % 2;
    const int moved = element_ ^ ((is_next * 2) ^ pixel) * kChunk;
    return (&box.pixels[0][0][0])[(group * 8 + pixel) * Box::kWindowFilters + moved];
  }

  int first_;
  int element_;  // of the first sum, from the box's beginning
};

}  // namespace dnncore::wgmma
