// The filter gradient of depthwise 3x3 convolutions of stride 1 whose output is as large as x, on vectors of four channels, which are innermost; parts
// are as in depthwise_filter.cuh, whose second kernel adds them. A thread walks down a strip of kStripColumns columns, row of x by row, and keeps the
// three rows of dy that a row of x meets, so that it reads each element of dy once, and of x, beside the halo of one column on either side; the next
// kAhead rows of both are on their way.
//
//       dy                     x                                    window: rows r - 1, r, r + 1 of dy
//     . +-----+ .        . . +-----+ . .                            sums[t][n] += dy[r + 1 - t][q] x[r][q + n - 1]
//     . |strip| .   r    . o |ooooo| o .    <- one row of x
//     . +-----+ .        . . +-----+ . .    o: the columns of x that the strip meets
//
// The threads of a block are [strip][vector of channels]; all strips of a block are a group. The rows of all groups of all images, one after the other,
// are cut evenly into parts, of which a block walks over one. Rows of x outside the image are passed over, columns outside are zeros that are multiplied.
#pragma once

#include "dnncore/convolution/depthwise.cuh"

namespace dnncore::depthwise {

constexpr int kStripColumns = 4;         // _COLUMNS in depthwise_filter_columns.py
constexpr int kStripWidth = 4;           // channels of a vector; _WIDTH there
constexpr int kColumnWalkThreads = 128;  // of a block; _THREADS there

// Mirrored by _PARAMS in dnncore/cuda/convolution/depthwise_filter_columns.py. Strides are in elements.
struct FilterColumnsParams {
  Blend blend;
  const void* x;
  const void* dy;
  void* parts;  // [parts, filters, 3, 3] in the compute type
  int64 image;  // stride of x and of dy, as the next two
  int32 row;
  int32 column;
  SmallDivisor rows;    // of an image
  SmallDivisor groups;  // of strips, in a row
  int32 columns;        // of an image, a multiple of kStripColumns
  int32 count;          // rows of all groups of all images
  int32 num_parts;
  int32 filters;
  int32 chunks;   // of vectors of channels
  int32 vectors;  // per chunk, a power of two
};

// Rows of x from `first` on, and those of dy around them, of one strip.
template <typename T, int kAhead>
class StripWalk {
 public:
  using C = Compute<T>;
  using Sums = C[3][3][kStripWidth];

  __device__ __forceinline__ StripWalk(const FilterColumnsParams& params, const T* x, const T* dy, int32 column, int32 first, int32 rows)
      : params_(params), x_(x), dy_(dy), first_(first), end_(first + rows), has_left_(column > 0),
        has_right_(column + kStripColumns < params.columns) {}

  __device__ __forceinline__ void add(Sums& sums) {
    C window[3][kStripColumns][kStripWidth];  // in slot (s + j) % 3 row j - 1 around the s-th row of x
    {
      Loaded<T, kStripWidth> before[2][kStripColumns];
      begin_dy(before[0], first_ - 1);
      begin_dy(before[1], first_);
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) begin(ahead, first_ + ahead);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int q = 0; q < kStripColumns; ++q) before[j][q].widen_into(window[j][q]);
      }
    }
    for (int32 row = first_; row < end_; row += 3 * kAhead) {
#pragma unroll
      for (int s = 0; s < 3 * kAhead; ++s) {
        if (row + s >= end_) break;
        C values[kMet][kStripWidth];
#pragma unroll
        for (int c = 0; c < kMet; ++c) loaded_[s % kAhead][c].widen_into(values[c]);
#pragma unroll
        for (int q = 0; q < kStripColumns; ++q) gradients_[s % kAhead][q].widen_into(window[(s + 2) % 3][q]);
        begin(s % kAhead, row + s + kAhead);
#pragma unroll
        for (int t = 0; t < 3; ++t) {
          const int32 of_dy = row + s + 1 - t;
          if (t != 1 && static_cast<uint32>(of_dy) >= static_cast<uint32>(params_.rows.value)) continue;  // x may hold an infinity there
#pragma unroll
          for (int q = 0; q < kStripColumns; ++q) {
#pragma unroll
            for (int n = 0; n < 3; ++n) {
#pragma unroll
              for (int i = 0; i < kStripWidth; ++i) sums[t][n][i] += window[(s + 2 - t) % 3][q][i] * values[q + n][i];
            }
          }
        }
      }
    }
  }

 private:
  static constexpr int kMet = kStripColumns + 2;

  // Begin to load a row of x and the row of dy behind it.
  __device__ __forceinline__ void begin(int slot, int32 row) {
    const T* const place = x_ + row * params_.row;
#pragma unroll
    for (int c = 0; c < kMet; ++c) {
      const bool in_row = (c > 0 || has_left_) && (c < kMet - 1 || has_right_);
      loaded_[slot][c].load_if(row < end_ && in_row, nth_place(place, c - 1, params_.column * static_cast<int32>(sizeof(T))));
    }
    begin_dy(gradients_[slot], row + 1);
  }
  __device__ __forceinline__ void begin_dy(Loaded<T, kStripWidth> (&to)[kStripColumns], int32 row) const {
    const bool there = static_cast<uint32>(row) < static_cast<uint32>(params_.rows.value) && row <= end_;
    const T* const place = dy_ + row * params_.row;
#pragma unroll
    for (int q = 0; q < kStripColumns; ++q) to[q].load_if(there, nth_place(place, q, params_.column * static_cast<int32>(sizeof(T))));
  }

  const FilterColumnsParams& params_;
  const T* x_;
  const T* dy_;
  int32 first_, end_;
  bool has_left_, has_right_;
  Loaded<T, kStripWidth> loaded_[kAhead][kMet], gradients_[kAhead][kStripColumns];
};

template <typename T, int kAhead>
__device__ void filter_of_columns(const FilterColumnsParams& params) {
  using C = Compute<T>;
  constexpr int kTaps = 9;
  __shared__ C totals[kTaps * kStripWidth][kColumnWalkThreads];
  const int32 chunk = blockIdx.x % params.chunks, part = blockIdx.x / params.chunks;
  const int32 lane = threadIdx.x % params.vectors, strip = threadIdx.x / params.vectors, strips = kColumnWalkThreads / params.vectors;
  const int32 channel = (chunk * params.vectors + lane) * kStripWidth;

  C sums[3][3][kStripWidth] = {};
  int32 at = static_cast<int32>(static_cast<int64>(params.count) * part / params.num_parts);
  const int32 end = static_cast<int32>(static_cast<int64>(params.count) * (part + 1) / params.num_parts);
  while (at < end) {
    const SmallQuotientRemainder row = divide(at, params.rows);
    const SmallQuotientRemainder group = divide(row.quotient, params.groups);
    const int32 rows = min(params.rows.value - row.remainder, end - at), column = (group.remainder * strips + strip) * kStripColumns;
    at += rows;
    if (column >= params.columns || channel >= params.filters) continue;
    const int64 start = group.quotient * params.image + column * params.column + channel;
    const T *const x = static_cast<const T*>(params.x) + start, *const dy = static_cast<const T*>(params.dy) + start;
    StripWalk<T, kAhead>(params, x, dy, column, row.remainder, rows).add(sums);
  }
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
    for (int i = 0; i < kStripWidth; ++i) totals[tap * kStripWidth + i][threadIdx.x] = sums[tap / 3][tap % 3][i];
  }
  __syncthreads();
  for (int32 i = threadIdx.x; i < kTaps * kStripWidth * params.vectors; i += kColumnWalkThreads) {
    const int32 vector = i % params.vectors, value = i / params.vectors;
    const int32 filter = (chunk * params.vectors + vector) * kStripWidth + value % kStripWidth;
    if (filter >= params.filters) continue;
    C total = 0;
    for (int32 j = 0; j < strips; ++j) total += totals[value][j * params.vectors + vector];
    const int64 place = static_cast<int64>(part) * params.filters + filter;
    static_cast<C*>(params.parts)[place * kTaps + value / kStripWidth] = total;
  }
}

}  // namespace dnncore::depthwise
