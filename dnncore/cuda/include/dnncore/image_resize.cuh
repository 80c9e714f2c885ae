// Images of different sizes, resampled to one size with weights of 22 bits: along one axis, rounded to 8 bits, and then
// along the other, rounded again; which comes first is each image's own. The sums are whole numbers, so the result is that of two passes, and of Pillow, bit
// for bit.
//
// A thread makes one pixel, all channels, and goes over the rectangle of the source that its taps span. It computes what
// a first pass would have left for its neighbours again for each pixel that needs them (twice for bilinear, 4 times
// for bicubic, 6 times for Lanczos), and takes neither an intermediate image, whose size would depend on the batch, nor
// a second launch. A photograph of 500 x 375 to 256 x 256 has 16 to 25 taps a pixel; the copy of its bytes to the device
// takes longer.
//
//    taps, of a row or column of length L     first | how many | weight 0 | weight 1 | ...     each of length L, so that
//                                             neighbouring threads read neighbouring words
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

constexpr int kResizeChannels = 4;  // _MAX_CHANNELS in dnncore/problems/image.py
constexpr int kWeightBits = 22;     // BITS in dnncore/preprocessing/resampling.py
constexpr int kKeptBits = 16;       // after the point, of what the columns are summed from where it is not rounded

// Mirrored by _RESIZE in dnncore/cuda/image.py.
struct ImageResizeParams {
  Blend blend;
  const uint8* pixels;
  const int32* images;  // [N, 5]: begin, bytes of a row, taps of the rows, taps of the columns, which are first
  const int32* taps;
  uint8* y;
  int64 size;  // pixels of all results
  Divisor rows;
  Divisor columns;
  int64 y_strides[4];  // of n, c, h, w
  int32 channels;
  int32 border[kResizeChannels];
  int32 rounds_between;
};

// The nearest pixel, halves up, of a sum with so many bits after the point.
template <typename Sum>
__device__ __forceinline__ int32 rounded_to_pixel(Sum sum, int bits) {
  return static_cast<int32>(min(max((sum + (Sum{1} << (bits - 1))) >> bits, Sum{0}), Sum{255}));
}

// What one row, or column, of the result takes of an image.
struct ResizeTaps {
  const int32* words;  // the first that counts, how many do, and their weights, each a length further on
  int32 length;
  int64 step;  // bytes from one pixel to the next
  __device__ __forceinline__ int64 first() const { return words[0] * step; }
  __device__ __forceinline__ int32 count() const { return words[length]; }
  __device__ __forceinline__ int32 weight(int32 i) const { return words[int64{2 + i} * length]; }
};

__device__ void image_resize(const ImageResizeParams& params) {
  const int bits = kWeightBits + (params.rounds_between ? 0 : kKeptBits);  // of the last sums, after the point
  const int channels = params.channels;
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const QuotientRemainder column = divide(index, params.columns);
    const QuotientRemainder row = divide(column.quotient, params.rows);
    const int64 n = row.quotient, p = row.remainder, q = column.remainder;
    const int32* image = params.images + 5 * n;
    ResizeTaps outer{params.taps + image[2] + p, static_cast<int32>(params.rows.value), image[1]};
    ResizeTaps inner{params.taps + image[3] + q, static_cast<int32>(params.columns.value), channels};
    if (image[4] != 0) {
      const ResizeTaps columns = inner;
      inner = outer;
      outer = columns;
    }
    const int32 outer_count = outer.count(), inner_count = inner.count();
    uint8* y = params.y + n * params.y_strides[0] + p * params.y_strides[2] + q * params.y_strides[3];

    const bool is_border = outer_count == 0 || inner_count == 0;
    int64 sums[kResizeChannels] = {};
    if (!is_border) {
      const uint8* line = params.pixels + image[0] + outer.first() + inner.first();
      for (int32 j = 0; j < outer_count; ++j, line += outer.step) {
        int32 line_sums[kResizeChannels] = {};
        const uint8* pixel = line;
        for (int32 i = 0; i < inner_count; ++i, pixel += inner.step) {
          const int32 weight = inner.weight(i);
#pragma unroll
          for (int c = 0; c < kResizeChannels; ++c) {
            if (c < channels) line_sums[c] += weight * pixel[c];
          }
        }
        const int32 weight = outer.weight(j);
#pragma unroll
        for (int c = 0; c < kResizeChannels; ++c) {
          const int32 kept = line_sums[c] >> (kWeightBits - kKeptBits);
          sums[c] += int64{weight} * (params.rounds_between ? rounded_to_pixel(line_sums[c], kWeightBits) : kept);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kResizeChannels; ++c) {
      const int32 pixel = is_border ? params.border[c] : rounded_to_pixel(sums[c], bits);
      if (c < channels) blend_into(params.blend, static_cast<float>(pixel), y + c * params.y_strides[1]);
    }
  }
}

}  // namespace dnncore
