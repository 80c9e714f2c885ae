// The filter gradient of depthwise convolutions with square filters of stride 1 that are not dilated, on small planes whose
// columns are innermost; parts are as in depthwise_filter.cuh, whose second kernel adds them. A block takes some channels and
// walks over images. A thread takes one segment of a row of dy (depthwise_segments.cuh) in each image and adds up all taps, which
// stay in its registers: of each row of x that the segment meets it reads and widens what kFilter taps share. While a block
// computes an image, the next one is on its way to its registers; planes of x go on to one of two places in shared memory.
//
//     threads of a block     [channel][segment of dy, and segment of x to bring]
//
// Rows and columns outside x are zeros that are multiplied.
#pragma once

#include "dnncore/convolution/depthwise_segments.cuh"

namespace dnncore::depthwise {

// Mirrored by _PARAMS in dnncore/cuda/convolution/depthwise_filter_planes.py. Strides are in elements; columns are neighbours.
struct FilterPlanesParams {
  Blend blend;
  const void* x;
  const void* dy;
  void* parts;           // [parts, filters, kFilter, kFilter] in the compute type
  int64 x_image;
  int64 x_channel;
  int64 x_row;
  int64 dy_image;
  int64 dy_channel;
  int64 dy_row;
  int32 x_rows;
  int32 x_columns;
  int32 dy_rows;
  int32 dy_columns;
  int32 padding_rows;
  int32 padding_columns;
  int32 wide;            // columns of a segment, even
  int32 x_segments;      // of a row
  int32 dy_segments;
  int32 slots;           // threads of a channel
  int32 pitch;
  int32 plane;           // elements in shared memory
  int32 images;
  int32 part;            // images per part
  int32 filters;
  int32 chunks;          // of channels
  int32 in_pairs;        // whether all strides and columns are even
};

// Add the products of all taps with the first `count` elements of a segment of dy.
template <typename T, int kFilter, bool kWhole>
__device__ __forceinline__ void add_segment(
    const T* place, int32 pitch, int32 count, const Compute<T> (&gradients)[kSegment],
    Compute<T> (&sums)[kFilter][kFilter]) {
#pragma unroll
  for (int t = 0; t < kFilter; ++t) {
    Compute<T> values[kSegment + kFilter - 1];
    widen_row<T, kFilter>(place + t * pitch, values);
#pragma unroll
    for (int n = 0; n < kSegment; ++n) {
      if (!kWhole && n >= count) break;  // x may hold an infinity there
#pragma unroll
      for (int u = 0; u < kFilter; ++u) sums[t][u] += gradients[n] * values[n + u];
    }
  }
}

template <typename T, int kFilter>
__device__ void filter_of_small_planes(const FilterPlanesParams& params) {
  using C = Compute<T>;
  constexpr int kTaps = kFilter * kFilter;
  extern __shared__ __align__(16) unsigned char shared[];
  T* const planes = reinterpret_cast<T*>(shared);  // [2][channels of a block][plane]
  const int32 chunk = blockIdx.x % params.chunks, part = blockIdx.x / params.chunks;
  const int32 threads = static_cast<int32>(blockDim.x), channels = threads / params.slots;
  const int32 member = threadIdx.x / params.slots, slot = threadIdx.x - member * params.slots;
  const int32 channel = chunk * channels + member, stage = channels * params.plane;
  const bool in_pairs = params.in_pairs && (reinterpret_cast<std::uintptr_t>(params.x) |
                                            reinterpret_cast<std::uintptr_t>(params.dy)) % (2 * sizeof(T)) == 0;

  const int32 row = slot / params.dy_segments, column = (slot - row * params.dy_segments) * params.wide;
  const int32 x_row = slot / params.x_segments, x_column = (slot - x_row * params.x_segments) * params.wide;
  const bool exists = channel < params.filters;
  const int32 count = exists && row < params.dy_rows ? min(params.wide, params.dy_columns - column) : 0;
  const int32 x_count = exists && x_row < params.x_rows ? min(params.wide, params.x_columns - x_column) : 0;
  const T* const x = static_cast<const T*>(params.x) + channel * params.x_channel + x_row * params.x_row + x_column;
  const T* const dy = static_cast<const T*>(params.dy) + channel * params.dy_channel + row * params.dy_row + column;
  T* const own = planes + member * params.plane;
  T* const brought = own + (x_row + params.padding_rows) * params.pitch + params.padding_columns + x_column;
  const T* const met = own + row * params.pitch + column;

  clear_vectors(planes, (2 * stage * static_cast<int32>(sizeof(T)) + 15) / 16 * 16);
  __syncthreads();
  C sums[kFilter][kFilter] = {}, gradients[kSegment];
  Segment<T> next_x, next_dy;
  const int32 begin = part * params.part, end = min(begin + params.part, params.images);
  const auto load = [&](int32 image) {
    if (image >= end) return;
    next_x.load(x + image * params.x_image, x_count, in_pairs);
    next_dy.load(dy + image * params.dy_image, count, in_pairs);
  };
  const auto put = [&](int32 image) {
    if (image < end) next_x.store(brought + image % 2 * stage, x_count);
    next_dy.widen_into(gradients);
    load(image + 1);
    __syncthreads();
  };
  load(begin);
  put(begin);
  for (int32 image = begin; image < end; ++image) {
    const T* const place = met + image % 2 * stage;
    if (count == kSegment) {
      add_segment<T, kFilter, true>(place, params.pitch, count, gradients, sums);
    } else if (count > 0) {
      add_segment<T, kFilter, false>(place, params.pitch, count, gradients, sums);
    }
    put(image + 1);
  }

  C* const totals = reinterpret_cast<C*>(shared);  // [kTaps][threads, made odd]
  const int32 apart = threads | 1;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) totals[tap * apart + threadIdx.x] = sums[tap / kFilter][tap % kFilter];
  __syncthreads();
  C* const parts = static_cast<C*>(params.parts) + (static_cast<int64>(part) * params.filters + chunk * channels) * kTaps;
  const int32 values = min(channels, params.filters - chunk * channels) * kTaps;
  for (int32 i = threadIdx.x; i < values; i += threads) {
    const C* const from = totals + i % kTaps * apart + i / kTaps * params.slots;
    C total = 0;
    for (int32 j = 0; j < params.slots; ++j) total += from[j];
    parts[i] = total;
  }
}

}  // namespace dnncore::depthwise
