// From planes in float32 to pixels of few channels in 16 bits. Channel by channel, threads read neighbouring pixels of a
// tile into shared memory, where they come to lie as in the output, and write what is there 16 bytes at a time. It is
// memory-bound.
//
//    planes                 shared, and the output
//    r r r r r r r r        r g b r g b r g b r g b ...
//    g g g g g g g g
//    b b b b b b b b
#pragma once

#include "dnncore/common/loaded.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/interleave.py. x is [batch, channels, pixels], dense along the pixels; the output
// [batch, pixels, channels], dense but for the batch.
struct InterleaveParams {
  Blend blend;
  const void* x;
  void* output;
  int64 channels;
  int64 pixels;
  int64 x_channel;  // stride
  int64 tiles;
  Divisor tiles_a_image;
  TensorView x_batch;
  TensorView output_batch;
};

constexpr int kInterleavePixels = 1024;  // of a tile; _PIXELS in interleave.py

template <typename T>
__device__ void interleave(const InterleaveParams& params) {
  constexpr int kThreads = 256, kItems = kInterleavePixels / kThreads, kRows = 4, kLanes = 16 / sizeof(T);
  extern __shared__ __align__(16) unsigned char memory[];
  float* const tile = reinterpret_cast<float*>(memory);  // [kInterleavePixels][channels]
  const int thread = static_cast<int>(threadIdx.x), channels = static_cast<int>(params.channels);
  for (int64 index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const QuotientRemainder image = divide(index, params.tiles_a_image);
    const int64 first = image.remainder * kInterleavePixels;
    const int64 left = params.pixels - first;
    const int pixels = static_cast<int>(left < kInterleavePixels ? left : kInterleavePixels);
    const float* const x = static_cast<const float*>(params.x) + offset_of(params.x_batch, image.quotient) + first;
    T* const output =
        static_cast<T*>(params.output) + offset_of(params.output_batch, image.quotient) + first * channels;
    for (int first_row = 0; first_row < channels; first_row += kRows) {
      float values[kRows][kItems];  // all loads before the first store
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int item = 0; item < kItems; ++item) {
          const int pixel = thread + item * kThreads;
          const bool exists = first_row + row < channels && pixel < pixels;
          values[row][item] = exists ? x[(first_row + row) * params.x_channel + pixel] : 0.0f;
        }
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (first_row + row >= channels) break;
#pragma unroll
        for (int item = 0; item < kItems; ++item) {
          tile[(thread + item * kThreads) * channels + first_row + row] = values[row][item];
        }
      }
    }
    __syncthreads();
    const int count = pixels * channels;
    const bool whole = reinterpret_cast<uint64>(output) % 16 == 0;
    for (int start = thread * kLanes; start < count; start += kThreads * kLanes) {
      if (whole && start + kLanes <= count) {
        auto* const target = reinterpret_cast<Vector<T, kLanes>*>(output + start);
        Vector<T, kLanes> vector{};
        if (params.blend.beta != 0.0) vector = *target;
#pragma unroll
        for (int i = 0; i < kLanes; ++i) blend_into(params.blend, tile[start + i], &vector.at[i]);
        *target = vector;
      } else {
        for (int i = start; i < min(start + kLanes, count); ++i) blend_into(params.blend, tile[i], output + i);
      }
    }
    __syncthreads();  // before the next tile overwrites this one
  }
}

}  // namespace dnncore
