// The filter gradient of depthwise convolutions with square filters of stride 1 that are not dilated, on pieces of 16 bytes of
// channels, which are innermost; parts are as in depthwise_filter.cuh, whose second kernel adds them. A block takes some
// channels and walks over bands: a few rows of dy of one image, and the rows of x that they meet. The next band comes to
// shared memory by copies that run while the block computes. A thread adds up one row of taps for four channels: it walks
// along a row of dy and the row of x that this row of taps shifts over it, and keeps in registers what kFilter taps meet, so
// that it reads, and widens, one place of x and one of dy for kFilter products of each channel.
//
//     shared memory, a stage        x  | zeros | columns of x | zeros | . pitch      kFilter - 1 rows more than dy
//     (two of them)                 dy | columns of dy | . dy_pitch                  `high` rows
//
//     threads of a block            [row of taps][walker][lane]       walkers take the rows of dy in turn;
//                                                                     a lane is a vector of four channels
//     registers of a thread         window: places q .. q + kFilter - 1 of x, each in slot q % kFilter
//
// Rows of x outside the image are passed over, columns outside are zeros that are multiplied.
#pragma once

#include "dnncore/convolution/depthwise.cuh"
#include "dnncore/ptx/async_copy.cuh"

namespace dnncore::depthwise {

// Mirrored by _PARAMS in dnncore/cuda/convolution/depthwise_filter_channels.py. Strides are in elements.
struct FilterChannelsParams {
  Blend blend;
  const void* x;
  const void* dy;
  void* parts;           // [parts, filters, kFilter, kFilter] in the compute type
  int64 x_image;
  int64 x_row;
  int64 dy_image;
  int64 dy_row;
  int32 x_column;
  int32 dy_column;
  int32 x_rows;
  int32 dy_rows;
  int32 padding_rows;
  int32 padding_columns;
  SmallDivisor x_columns;
  SmallDivisor dy_columns;
  SmallDivisor bands;    // of an image
  int32 count;           // bands of all images
  int32 part;            // bands per part
  int32 high;            // rows of dy in a band
  int32 pitch;           // vectors from row to row of a stage
  int32 dy_pitch;
  int32 x_vectors;       // of a stage, in front of those of dy
  int32 stage_vectors;
  int32 filters;
  int32 chunks;          // of lanes
  int32 lanes;           // vectors of channels of a block, in whole pieces
  int32 walkers;
};

constexpr int kLaneWidth = 4;

// Begin to copy `rows` rows of `columns` places, all lanes of each.
template <typename T>
__device__ __forceinline__ void bring_rows(
    Loaded<T, kLaneWidth>* to, int32 pitch, const T* from, int64 row_step, int32 column_step, int32 rows,
    const SmallDivisor& columns, int32 lanes) {
  constexpr int kShare = 16 / (kLaneWidth * sizeof(T));  // lanes of a piece
  const int32 pieces = lanes / kShare, step = static_cast<int32>(blockDim.x) / pieces;
  const int32 first = static_cast<int32>(threadIdx.x) / pieces, lane = (threadIdx.x - first * pieces) * kShare;
  if (first >= step) return;
  for (int32 place = first; place < rows * columns.value; place += step) {
    const SmallQuotientRemainder row = divide(place, columns);
    copy_vector_async(
        reinterpret_cast<uint4*>(to + row.quotient * pitch + row.remainder * lanes + lane),
        from + row.quotient * row_step + static_cast<int64>(row.remainder) * column_step + lane * kLaneWidth, true);
  }
}

// Add the products of kFilter taps with `columns` places of dy.
template <typename T, int kFilter>
__device__ __forceinline__ void add_row_of_taps(
    const Loaded<T, kLaneWidth>* x, const Loaded<T, kLaneWidth>* dy, int32 columns, int32 lanes,
    Compute<T> (&sums)[kFilter][kLaneWidth]) {
  using C = Compute<T>;
  C window[kFilter][kLaneWidth];
#pragma unroll
  for (int n = 0; n < kFilter - 1; ++n) x[n * lanes].widen_into(window[n]);
  x += (kFilter - 1) * lanes;
  const auto add = [&](int n) {
    C gradient[kLaneWidth];
    x[n * lanes].widen_into(window[(n + kFilter - 1) % kFilter]);
    dy[n * lanes].widen_into(gradient);
#pragma unroll
    for (int u = 0; u < kFilter; ++u) {
#pragma unroll
      for (int i = 0; i < kLaneWidth; ++i) sums[u][i] += gradient[i] * window[(n + u) % kFilter][i];
    }
  };
  int32 left = columns;
  for (; left >= kFilter; left -= kFilter, x += kFilter * lanes, dy += kFilter * lanes) {
#pragma unroll
    for (int n = 0; n < kFilter; ++n) add(n);
  }
#pragma unroll
  for (int n = 0; n < kFilter - 1; ++n) {
    if (n >= left) break;
    add(n);
  }
}

template <typename T, int kFilter>
__device__ void filter_of_bands(const FilterChannelsParams& params) {
  using C = Compute<T>;
  using Lane = Loaded<T, kLaneWidth>;
  extern __shared__ __align__(16) unsigned char shared[];
  Lane* const stages = reinterpret_cast<Lane*>(shared);
  const int32 chunk = blockIdx.x % params.chunks, part = blockIdx.x / params.chunks;
  const int32 team = params.lanes * params.walkers, first_channel = chunk * params.lanes * kLaneWidth;
  const int32 lane = threadIdx.x % params.lanes, walker = threadIdx.x / params.lanes % params.walkers;
  const int32 tap_row = threadIdx.x / team;
  const T *const x = static_cast<const T*>(params.x) + first_channel, *const dy = static_cast<const T*>(params.dy) + first_channel;

  for (int32 i = threadIdx.x; i < 2 * params.stage_vectors; i += blockDim.x) stages[i] = Lane{};
  __syncthreads();
  const auto bring = [&](int32 number) {
    const SmallQuotientRemainder image = divide(number, params.bands);
    Lane* const stage = stages + number % 2 * params.stage_vectors;
    const int32 first = image.remainder * params.high, rows = min(params.high, params.dy_rows - first);
    const int32 x_first = first - params.padding_rows;
    const int32 begin = max(x_first, 0), end = min(x_first + rows + kFilter - 1, params.x_rows);
    bring_rows<T>(
        stage + (begin - x_first) * params.pitch + params.padding_columns * params.lanes, params.pitch,
        x + image.quotient * params.x_image + begin * params.x_row, params.x_row, params.x_column, end - begin,
        params.x_columns, params.lanes);
    bring_rows<T>(
        stage + params.x_vectors, params.dy_pitch, dy + image.quotient * params.dy_image + first * params.dy_row, params.dy_row,
        params.dy_column, rows, params.dy_columns, params.lanes);
  };

  C sums[kFilter][kLaneWidth] = {};
  const int32 begin = part * params.part, end = min(begin + params.part, params.count);
  bring(begin);
  commit_copies();
  for (int32 number = begin; number < end; ++number) {
    if (number + 1 < end) bring(number + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int32 first = divide(number, params.bands).remainder * params.high;
    const int32 rows = min(params.high, params.dy_rows - first);
    const Lane* const stage = stages + number % 2 * params.stage_vectors + lane;
    for (int32 row = walker; row < rows; row += params.walkers) {
      const int32 x_row = first - params.padding_rows + row + tap_row;
      if (static_cast<uint32>(x_row) >= static_cast<uint32>(params.x_rows)) continue;
      add_row_of_taps<T, kFilter>(
          stage + (row + tap_row) * params.pitch, stage + params.x_vectors + row * params.dy_pitch, params.dy_columns.value,
          params.lanes, sums);
    }
    __syncthreads();
  }

  C* const totals = reinterpret_cast<C*>(shared);  // [kFilter * kLaneWidth][threads]
#pragma unroll
  for (int u = 0; u < kFilter; ++u) {
#pragma unroll
    for (int i = 0; i < kLaneWidth; ++i) totals[(u * kLaneWidth + i) * blockDim.x + threadIdx.x] = sums[u][i];
  }
  __syncthreads();
  C* const parts = static_cast<C*>(params.parts) + (static_cast<int64>(part) * params.filters + first_channel) * (kFilter * kFilter);
  for (int32 i = threadIdx.x; i < kFilter * kFilter * kLaneWidth * params.lanes; i += blockDim.x) {
    const int32 column = i % params.lanes, value = i / params.lanes % (kFilter * kLaneWidth);
    const int32 row = i / params.lanes / (kFilter * kLaneWidth);
    C total = 0;
    for (int32 j = 0; j < params.walkers; ++j) {
      total += totals[value * static_cast<int32>(blockDim.x) + row * team + j * params.lanes + column];
    }
    const int32 channel = column * kLaneWidth + value % kLaneWidth;
    parts[channel * (kFilter * kFilter) + row * kFilter + value / kLaneWidth] = total;
  }
}

}  // namespace dnncore::depthwise
