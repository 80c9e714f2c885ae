// Depthwise convolution with square filters of stride 1 that are not dilated, on small planes whose columns are innermost:
// forward, and backward-data, which is forward with the filter turned round. A block brings planes of some channels to shared
// memory, with their padding (depthwise_segments.cuh). A thread computes two rows of outputs, a segment wide: what it reads
// and widens of a row of the source meets as many taps of kFilter in up to two rows of the filter, which waits in shared memory, too.
//
//     threads of a block     [plane][pair of rows, segment]
//
//     source row   0  1  2  ...  kFilter     output row 0 meets rows 0 to kFilter - 1, row 1 those from 1 to kFilter
//
// Where planes of the output lie one behind another they go to memory through shared memory, in whole vectors; else, and where
// they are blended with what is there, from registers. Padding consists of zeros that are multiplied, so a filter that is not
// finite shows at the border, backward too.
#pragma once

#include "dnncore/common/factors.cuh"
#include "dnncore/convolution/depthwise_segments.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore::depthwise {

// Mirrored by _PARAMS in dnncore/cuda/convolution/depthwise_planes.py. Strides are in elements; columns are neighbours.
struct PlaneParams {
  Blend blend;
  Epilogue epilogue;  // of a fused convolution
  const void* source;
  const void* w;
  void* output;
  int64 source_image;
  int64 source_channel;
  int64 source_row;
  int64 output_image;
  int64 output_channel;
  int64 output_row;
  int64 w_filter;
  int64 w_offset;     // elements from w's address to the tap that the first row and column meet
  int32 w_row;
  int32 w_column;
  int32 source_rows;
  int32 source_columns;
  int32 output_rows;
  int32 output_columns;
  int32 padding_rows;
  int32 padding_columns;
  int32 wide;         // columns of a segment, even
  SmallDivisor source_segments;  // of a row
  int32 output_segments;
  int32 slots;        // threads of a plane
  int32 pitch;
  int32 plane;        // elements in shared memory
  int32 planes;       // of all images
  SmallDivisor channels;
  int32 in_pairs;     // whether the source's strides and columns are even
  int32 is_packed;    // whether planes of the output lie one behind another
};

constexpr int kPairOfRows = 2;
constexpr int kSegmentsAtOnce = 2;  // that a thread has on their way

// What the filter's rows make of a pair of rows; `place` is the first place that the first output meets.
template <typename T, int kFilter>
__device__ __forceinline__ void add_pair_of_rows(
    const T* place, int32 pitch, const Compute<T>* weights, Compute<T> (&sums)[kPairOfRows][kSegment]) {
  using C = Compute<T>;
  C above[kFilter];
#pragma unroll
  for (int r = 0; r <= kFilter; ++r) {
    C values[kSegment + kFilter - 1], taps[kFilter];
    widen_row<T, kFilter>(place + r * pitch, values);
    if (r < kFilter) {
#pragma unroll
      for (int u = 0; u < kFilter; ++u) taps[u] = weights[r * kFilter + u];
#pragma unroll
      for (int u = 0; u < kFilter; ++u) {
#pragma unroll
        for (int n = 0; n < kSegment; ++n) sums[0][n] += taps[u] * values[n + u];
      }
    }
    if (r > 0) {
#pragma unroll
      for (int u = 0; u < kFilter; ++u) {
#pragma unroll
        for (int n = 0; n < kSegment; ++n) sums[1][n] += above[u] * values[n + u];
      }
    }
    if (r < kFilter) {
#pragma unroll
      for (int u = 0; u < kFilter; ++u) above[u] = taps[u];
    }
  }
}

// Write `count` elements from shared memory, whose address is aligned for vectors.
template <typename T>
__device__ __forceinline__ void write_packed(const T* from, T* to, int32 count) {
  constexpr int32 kVector = 16 / sizeof(T);
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  const int32 vectors = aligned ? count / kVector : 0, step = static_cast<int32>(blockDim.x);
  for (int32 i = threadIdx.x; i < vectors; i += step) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  for (int32 i = vectors * kVector + static_cast<int32>(threadIdx.x); i < count; i += step) to[i] = from[i];
}

template <typename T, int kFilter>
__device__ void small_planes(const PlaneParams& params) {
  using C = Compute<T>;
  constexpr int kTaps = kFilter * kFilter;
  extern __shared__ __align__(16) unsigned char shared[];
  const int32 threads = static_cast<int32>(blockDim.x), members = threads / params.slots;
  C* const weights = reinterpret_cast<C*>(shared);                                   // [members][kTaps]
  T* const planes = reinterpret_cast<T*>(shared + (members * kTaps * sizeof(C) + 15) / 16 * 16);
  const int32 member = threadIdx.x / params.slots, slot = threadIdx.x - member * params.slots;
  const int32 first_plane = blockIdx.x * members, number = first_plane + member;
  const bool exists = number < params.planes;
  const SmallQuotientRemainder image = divide(exists ? number : 0, params.channels);
  const int32 channel = image.remainder;
  let_next_start();
  wait_for_previous();

  const bool in_pairs = params.in_pairs && reinterpret_cast<std::uintptr_t>(params.source) % (2 * sizeof(T)) == 0;
  const T* const source = static_cast<const T*>(params.source) + image.quotient * params.source_image +
                          channel * params.source_channel;
  T* const own = planes + member * params.plane;
  const int32 items = exists ? params.source_rows * params.source_segments.value : 0;
  Segment<T> segments[kSegmentsAtOnce];
  const auto each = [&](int32 first, const auto& act) {
#pragma unroll
    for (int i = 0; i < kSegmentsAtOnce; ++i) {
      const int32 item = first + i * params.slots;
      if (item >= items) continue;
      const SmallQuotientRemainder row = divide(item, params.source_segments);
      const int32 column = row.remainder * params.wide;
      act(segments[i], row.quotient, column, min(params.wide, params.source_columns - column));
    }
  };
  const auto load = [&](Segment<T>& segment, int32 row, int32 column, int32 count) {
    segment.load(source + row * params.source_row + column, count, in_pairs);
  };
  const auto put = [&](const Segment<T>& segment, int32 row, int32 column, int32 count) {
    segment.store(own + (row + params.padding_rows) * params.pitch + params.padding_columns + column, count);
  };
  each(slot, load);
  clear_vectors(planes, (members * params.plane * static_cast<int32>(sizeof(T)) + 15) / 16 * 16);
  const T* const w = static_cast<const T*>(params.w) + params.w_offset + channel * params.w_filter;
  for (int32 tap = slot; tap < kTaps; tap += params.slots) {
    weights[member * kTaps + tap] = widen(w[tap / kFilter * params.w_row + tap % kFilter * params.w_column]);
  }
  __syncthreads();
  each(slot, put);
  for (int32 first = slot + kSegmentsAtOnce * params.slots; first < items; first += kSegmentsAtOnce * params.slots) {
    each(first, load);
    each(first, put);
  }
  __syncthreads();

  const int32 pair = slot / params.output_segments, column = (slot - pair * params.output_segments) * params.wide;
  const int32 row = pair * kPairOfRows, rows = exists ? min(kPairOfRows, params.output_rows - row) : 0;
  const int32 count = min(params.wide, params.output_columns - column);
  C sums[kPairOfRows][kSegment] = {};
  if (exists) add_pair_of_rows<T, kFilter>(own + row * params.pitch + column, params.pitch, weights + member * kTaps, sums);

  T* const target = static_cast<T*>(params.output) + image.quotient * params.output_image +
                    channel * params.output_channel + row * params.output_row + column;
  if (params.epilogue.is_present) {
    const T* const z = static_cast<const T*>(params.epilogue.z) + (target - static_cast<T*>(params.output));
    const auto residual = [&](int i) {
      const bool is_there = i / kSegment < rows && i % kSegment < count;
      return is_there ? widen(z[i / kSegment * params.output_row + i % kSegment]) : C(0);
    };
    finish<T, 1>(params.epilogue, channel, residual, reinterpret_cast<C(&)[kPairOfRows * kSegment]>(sums));
  }

  const Factors<C> factors(params.blend);
  if (params.is_packed && !factors.reads) {
    __syncthreads();
    const int32 outputs = params.output_rows * params.output_columns;
    T* const kept = planes + member * outputs + row * params.output_columns + column;
#pragma unroll
    for (int out = 0; out < kPairOfRows; ++out) {
#pragma unroll
      for (int n = 0; n < kSegment; ++n) {
        if (out < rows && n < count) kept[out * params.output_columns + n] = narrow<T>(factors.alpha * sums[out][n]);
      }
    }
    __syncthreads();
    write_packed(
        planes, static_cast<T*>(params.output) + static_cast<int64>(first_plane) * outputs,
        min(members, params.planes - first_plane) * outputs);
    return;
  }
#pragma unroll
  for (int out = 0; out < kPairOfRows; ++out) {
#pragma unroll
    for (int n = 0; n < kSegment; ++n) {
      const C one[1] = {sums[out][n]};
      if (out < rows && n < count) factors.blend_into(one, target + out * params.output_row + n);
    }
  }
}

}  // namespace dnncore::depthwise
