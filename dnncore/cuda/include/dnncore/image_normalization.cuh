// Pixels of 8 bits to a net's input: every value of a pixel is looked up in its channel's table of 256 floats, which a
// block keeps in shared memory (C * 1 KiB). What a pixel becomes is whatever the host has put there, bit for bit, and a
// lookup costs less than the conversion and the three operations that it stands for. A mean image is subtracted after
// it. It is memory-bound: a byte is read and a float, or a half, written for each element.
//
//    x, 4 pixels of 3 channels             y, planar                      y, interleaved
//    [rgbr][gbrg][brgb]  3 loads           [rrrr] [gggg] [bbbb]           [rgbr][gbrg][brgb]  3 stores of 4 elements
//
// The kernel `pixels` gives a thread 4 neighbours of a row; where they are not whole, not aligned or partly in the
// border, the same thread takes them one by one. `strided` takes any tensors, an element at a time.
#pragma once

#include "dnncore/common/loaded.cuh"

namespace dnncore {

constexpr int kImageChannels = 4;  // _MAX_CHANNELS in dnncore/problems/image.py

// Mirrored by _NORMALIZATION in dnncore/cuda/image.py. Strides are those of n, c, h, w.
struct ImageNormalizationParams {
  Blend blend;
  const void* x;
  const float* table;
  const float* mean;  // null for none
  void* y;
  int64 items;  // elements of y, or groups of 4 pixels
  Divisor channels;
  Divisor rows;
  Divisor columns;  // or groups of a row
  int64 x_strides[4];
  int64 y_strides[4];
  int64 mean_strides[3];  // of c, h, w
  int64 height;           // of x
  int64 width;
  int64 top;
  int64 left;
  int32 order[kImageChannels];
  int32 border[kImageChannels];
  int32 row_length;   // pixels of a row of y
  int32 interleaved;  // whether the channels of y are innermost
};

// Whether a row or column of y lies in x.
__device__ __forceinline__ bool is_inside(int64 at, int64 extent) { return at >= 0 && at < extent; }

// Blend `count` of 4 values into elements `step` apart: with one access where they are neighbours and aligned.
template <typename T>
__device__ __forceinline__ void blend_four(const Blend& blend, const float (&values)[4], int count, T* place, int64 step) {
  using Four = Vector<T, 4>;
  if (count == 4 && step == 1 && reinterpret_cast<uint64>(place) % sizeof(Four) == 0) {
    Four four{};
    if (blend.beta != 0.0) four = *reinterpret_cast<const Four*>(place);
#pragma unroll
    for (int i = 0; i < 4; ++i) blend_into(blend, values[i], &four.at[i]);
    *reinterpret_cast<Four*>(place) = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) blend_into(blend, values[i], place + i * step);
  }
}

// Four neighbouring pixels in registers, and which of them there are.
template <int kChannels>
struct FourPixels {
  uint32 words[kChannels] = {};
  bool inside[4];

  __device__ __forceinline__ void load(const uint8* place, bool row_is_inside, int64 first, int64 width, int count) {
#pragma unroll
    for (int i = 0; i < 4; ++i) inside[i] = row_is_inside && i < count && is_inside(first + i, width);
    if (inside[0] && inside[3] && reinterpret_cast<uint64>(place) % sizeof(uint32) == 0) {
#pragma unroll
      for (int i = 0; i < kChannels; ++i) words[i] = reinterpret_cast<const uint32*>(place)[i];
      return;
    }
#pragma unroll
    for (int byte = 0; byte < 4 * kChannels; ++byte) {
      if (inside[byte / kChannels]) words[byte / 4] |= static_cast<uint32>(place[byte]) << (8 * (byte % 4));
    }
  }

  // A chain of selections: an index that only the launch knows would put the words into local memory.
  __device__ __forceinline__ int32 at(int pixel, int32 channel) const {
    int32 value = 0;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const int byte = pixel * kChannels + c;
      if (c == 0 || channel == c) value = static_cast<int32>(words[byte / 4] >> (8 * (byte % 4)) & 255u);
    }
    return value;
  }
};

// x has its channels innermost and its pixels right behind each other.
template <typename T, int kChannels>
__device__ void image_normalization_pixels(const ImageNormalizationParams& params) {
  __shared__ float table[kChannels][256];
  for (int i = threadIdx.x; i < kChannels * 256; i += blockDim.x) table[i / 256][i % 256] = params.table[i];
  __syncthreads();
  for (int64 item = grid_index(); item < params.items; item += grid_size()) {
    const QuotientRemainder row = divide(item, params.columns);
    const QuotientRemainder image = divide(row.quotient, params.rows);
    const int64 n = image.quotient, p = image.remainder, q = 4 * row.remainder;
    const int count = q + 4 <= params.row_length ? 4 : static_cast<int>(params.row_length - q);
    const int64 h = p + params.top, w = q + params.left;
    FourPixels<kChannels> pixels;
    const int64 offset = n * params.x_strides[0] + h * params.x_strides[2] + w * kChannels;
    pixels.load(static_cast<const uint8*>(params.x) + offset, is_inside(h, params.height), w, params.width, count);

    float values[kChannels][4];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[c][i] = table[c][pixels.inside[i] ? pixels.at(i, params.order[c]) : params.border[c]];
      }
    }
    if (params.mean != nullptr) {
      const float* mean = params.mean + p * params.mean_strides[1] + q * params.mean_strides[2];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i < count) values[c][i] -= mean[c * params.mean_strides[0] + i * params.mean_strides[2]];
        }
      }
    }

    T* y = static_cast<T*>(params.y) + n * params.y_strides[0] + p * params.y_strides[2] + q * params.y_strides[3];
    if (params.interleaved && count == 4) {
#pragma unroll
      for (int part = 0; part < kChannels; ++part) {
        float lanes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) lanes[i] = values[(4 * part + i) % kChannels][(4 * part + i) / kChannels];
        blend_four(params.blend, lanes, 4, y + 4 * part, 1);
      }
    } else {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        blend_four(params.blend, values[c], count, y + c * params.y_strides[1], params.y_strides[3]);
      }
    }
  }
}

template <typename T>
__device__ void image_normalization_strided(const ImageNormalizationParams& params) {
  for (int64 item = grid_index(); item < params.items; item += grid_size()) {
    const QuotientRemainder column = divide(item, params.columns);
    const QuotientRemainder row = divide(column.quotient, params.rows);
    const QuotientRemainder channel = divide(row.quotient, params.channels);
    const int64 n = channel.quotient, c = channel.remainder, p = row.remainder, q = column.remainder;
    const int64 h = p + params.top, w = q + params.left;
    int32 pixel = params.border[c];
    if (is_inside(h, params.height) && is_inside(w, params.width)) {
      const int64 offset = n * params.x_strides[0] + params.order[c] * params.x_strides[1] + h * params.x_strides[2];
      pixel = static_cast<const uint8*>(params.x)[offset + w * params.x_strides[3]];
    }
    float value = params.table[c * 256 + pixel];
    if (params.mean != nullptr) {
      value -= params.mean[c * params.mean_strides[0] + p * params.mean_strides[1] + q * params.mean_strides[2]];
    }
    const int64 offset = n * params.y_strides[0] + c * params.y_strides[1] + p * params.y_strides[2];
    blend_into(params.blend, value, static_cast<T*>(params.y) + offset + q * params.y_strides[3]);
  }
}

}  // namespace dnncore
