// The filter gradient of depthwise convolutions with small square filters that are not dilated, on aligned rows or
// vectors of channels; parts are as in depthwise_filter.cuh, whose second kernel adds them. A thread adds up all taps
// at once, in registers, and walks over tiles of dy, few rows of few columns. dy and what a tile meets of x are on
// their way together, and each element is widened once and meets all its taps in registers.
//
//             x                       dy
//     . +-----------+ .         +-----------+       sums[t][u] += dy[p][q] * x[p * stride + t][q * stride + u]
//     . |           | .         |   tile    |
//     . |           | .         +-----------+       columns innermost: kTileRows rows under 16 bytes of x
//     . +-----------+ .                             channels innermost: kHigh x 2 places of kVector channels
//     . . . . . . . . .         dots: halo of the filter
#pragma once

#include "dnncore/common/reduce.cuh"
#include "dnncore/convolution/depthwise_tiles.cuh"

namespace dnncore::depthwise {

// Mirrored by _PARAMS in dnncore/cuda/convolution/depthwise_filter_tiles.py.
struct FilterTileParams {
  Blend blend;
  const void* x;
  const void* dy;
  void* parts;             // [parts, filters, kFilter, kFilter] in the compute type
  int64 x_image;
  int64 x_channel;
  int64 dy_image;
  int64 dy_channel;
  int32 x_rows;
  int32 x_columns;
  int32 dy_rows;
  int32 dy_columns;
  int32 x_row;             // strides
  int32 x_column;
  int32 dy_row;
  int32 dy_column;
  int32 padding;           // rows
  int32 piece;             // as in TileParams
  SmallDivisor strips;
  SmallDivisor row_tiles;
  int32 count;             // tiles of all images, of one channel
  int32 part;              // tiles per part
  int32 filters;
  int32 chunks;            // of vectors of channels
  int32 vectors;           // per chunk, a power of two
};

template <bool kValue>
struct Flag {
  static constexpr bool value = kValue;
};

// Where a tile is: its image, and its row and column among the tiles.
struct Tile {
  int32 image;
  int32 row;
  int32 strip;

  static __device__ __forceinline__ Tile of(const FilterTileParams& params, int32 number) {
    const SmallQuotientRemainder strip = divide(number, params.strips);
    const SmallQuotientRemainder row = divide(strip.quotient, params.row_tiles);
    return {row.quotient, row.remainder, strip.remainder};
  }
};

template <typename T, int kFilter, int kStride, int kPieceBytes>
__device__ __forceinline__ void add_plane_tile(
    const FilterTileParams& params, const Tile& tile, const T* x, const T* dy, Compute<T> (&sums)[kFilter][kFilter]) {
  using C = Compute<T>;
  constexpr int kWide = 16 / sizeof(T), kColumns = kWide / kStride, kPiece = kPieceBytes / sizeof(T);
  constexpr int kRows = kStride * (kTileRows - 1) + kFilter, kStored = kPiece / kStride, kPieces = kColumns / kStored;
  using Row = PlaneRow<T, Strided<kFilter, kStride>, kWide, kPiece>;
  const int32 first = tile.row * kTileRows, column = tile.strip * kColumns, x_column = tile.strip * kWide;
  x += tile.image * params.x_image + x_column;
  dy += tile.image * params.dy_image + static_cast<int64>(first) * params.dy_row + column;

  Loaded<T, kStored> gradients[kTileRows][kPieces];
  const auto is_there = [&](int out, int i) {
    return first + out < params.dy_rows && column + i * kStored < params.dy_columns;
  };
#pragma unroll
  for (int out = 0; out < kTileRows; ++out) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      gradients[out][i].load_if(is_there(out, i), dy + static_cast<int64>(out) * params.dy_row + i * kStored);
    }
  }
  Row loaded[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int32 row = first * kStride - params.padding + r;
    const bool inside = static_cast<uint32>(row) < static_cast<uint32>(params.x_rows);
    loaded[r].load(inside, x + static_cast<int64>(row) * params.x_row, x_column, params.x_columns);
  }
  const auto add = [&](auto whole) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      C values[Row::kAll];
      loaded[r].widen_into(values);
#pragma unroll
      for (int out = 0; out < kTileRows; ++out) {
        const int t = r - out * kStride;
        if (t < 0 || t >= kFilter) continue;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          if (!decltype(whole)::value && !is_there(out, i)) continue;  // x may hold an infinity there
          C gradient[kStored];
          gradients[out][i].widen_into(gradient);
#pragma unroll
          for (int n = 0; n < kStored; ++n) {
#pragma unroll
            for (int u = 0; u < kFilter; ++u) sums[t][u] += gradient[n] * values[(i * kStored + n) * kStride + u];
          }
        }
      }
    }
  };
  if (first + kTileRows <= params.dy_rows && column + kColumns <= params.dy_columns) {
    add(Flag<true>{});
  } else {
    add(Flag<false>{});
  }
}

// Columns are innermost: a block takes one part of one filter.
template <typename T, int kFilter, int kStride>
__device__ void filter_of_planes(const FilterTileParams& params) {
  using C = Compute<T>;
  __shared__ C totals[kMaxWarps][kFilter * kFilter];
  const int32 filter = blockIdx.x % params.filters, part = blockIdx.x / params.filters;
  const T* const x = static_cast<const T*>(params.x) + filter * params.x_channel;
  const T* const dy = static_cast<const T*>(params.dy) + filter * params.dy_channel;
  const int32 end = min((part + 1) * params.part, params.count);

  C sums[kFilter][kFilter] = {};
  const int32 first = part * params.part + static_cast<int32>(threadIdx.x), step = static_cast<int32>(blockDim.x);
  if (params.piece == 16) {
    for (int32 number = first; number < end; number += step) {
      add_plane_tile<T, kFilter, kStride, 16>(params, Tile::of(params, number), x, dy, sums);
    }
  } else {
    for (int32 number = first; number < end; number += step) {
      add_plane_tile<T, kFilter, kStride, 8>(params, Tile::of(params, number), x, dy, sums);
    }
  }

  const int32 warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
#pragma unroll
  for (int tap = 0; tap < kFilter * kFilter; ++tap) {
    const C total = reduce_warp<Sum>(sums[tap / kFilter][tap % kFilter]);
    if (threadIdx.x % kWarpSize == 0) totals[warp][tap] = total;
  }
  __syncthreads();
  if (threadIdx.x >= kFilter * kFilter) return;
  C total = 0;
  for (int32 i = 0; i < warps; ++i) total += totals[i][threadIdx.x];
  const int64 place = static_cast<int64>(part) * params.filters + filter;
  static_cast<C*>(params.parts)[place * (kFilter * kFilter) + threadIdx.x] = total;
}

template <typename T, int kFilter, int kStride, int kVector, int kHigh>
__device__ __forceinline__ void add_channels_tile(
    const FilterTileParams& params, const Tile& tile, const T* x, const T* dy,
    Compute<T> (&sums)[kFilter][kFilter][kVector]) {
  using C = Compute<T>;
  constexpr int kColumns = 2, kWide = kStride * (kColumns - 1) + kFilter, kRows = kStride * (kHigh - 1) + kFilter;
  const int32 x_step = params.x_column * static_cast<int32>(sizeof(T));
  const int32 dy_step = params.dy_column * static_cast<int32>(sizeof(T));
  const int32 first = tile.row * kHigh, column = tile.strip * kColumns;
  const int32 x_first = first * kStride - params.padding, x_column = column * kStride - (kFilter - 1) / 2;
  x += tile.image * params.x_image + static_cast<int64>(x_column) * params.x_column;
  dy += tile.image * params.dy_image + static_cast<int64>(column) * params.dy_column;

  Loaded<T, kVector> gradients[kHigh][kColumns], loaded[kRows][kWide];
  const auto is_there = [&](int out, int n) {
    return first + out < params.dy_rows && column + n < params.dy_columns;
  };
#pragma unroll
  for (int out = 0; out < kHigh; ++out) {
    const T* const place = dy + static_cast<int64>(first + out) * params.dy_row;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) gradients[out][n].load_if(is_there(out, n), nth_place(place, n, dy_step));
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const bool inside = static_cast<uint32>(x_first + r) < static_cast<uint32>(params.x_rows);
    const T* const place = x + static_cast<int64>(x_first + r) * params.x_row;
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      const bool there = inside && static_cast<uint32>(x_column + n) < static_cast<uint32>(params.x_columns);
      loaded[r][n].load_if(there, nth_place(place, n, x_step));
    }
  }
  const auto add = [&](auto whole) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      C values[kWide][kVector];
#pragma unroll
      for (int n = 0; n < kWide; ++n) loaded[r][n].widen_into(values[n]);
#pragma unroll
      for (int out = 0; out < kHigh; ++out) {
        const int t = r - out * kStride;
        if (t < 0 || t >= kFilter) continue;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          if (!decltype(whole)::value && !is_there(out, n)) continue;  // x may hold an infinity there
          C gradient[kVector];
          gradients[out][n].widen_into(gradient);
#pragma unroll
          for (int u = 0; u < kFilter; ++u) {
#pragma unroll
            for (int i = 0; i < kVector; ++i) sums[t][u][i] += gradient[i] * values[n * kStride + u][i];
          }
        }
      }
    }
  };
  if (first + kHigh <= params.dy_rows && column + kColumns <= params.dy_columns) {
    add(Flag<true>{});
  } else {
    add(Flag<false>{});
  }
}

// Channels are innermost: the threads of a block are [walker][vector], and the walkers share out the tiles of its part.
template <typename T, int kFilter, int kStride, int kVector, int kHigh>
__device__ void filter_of_channels(const FilterTileParams& params) {
  using C = Compute<T>;
  constexpr int kTaps = kFilter * kFilter;
  extern __shared__ __align__(16) unsigned char shared[];
  C* const totals = reinterpret_cast<C*>(shared);  // [kTaps * kVector][threads]
  const int32 chunk = blockIdx.x % params.chunks, part = blockIdx.x / params.chunks;
  const int32 lane = threadIdx.x % params.vectors, walker = threadIdx.x / params.vectors;
  const int32 walkers = static_cast<int32>(blockDim.x) / params.vectors;
  const int32 channel = (chunk * params.vectors + lane) * kVector;

  C sums[kFilter][kFilter][kVector] = {};
  if (channel < params.filters) {
    const T *const x = static_cast<const T*>(params.x) + channel, *const dy = static_cast<const T*>(params.dy) + channel;
    const int32 end = min((part + 1) * params.part, params.count);
    for (int32 number = part * params.part + walker; number < end; number += walkers) {
      add_channels_tile<T, kFilter, kStride, kVector, kHigh>(params, Tile::of(params, number), x, dy, sums);
    }
  }
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      totals[(tap * kVector + i) * blockDim.x + threadIdx.x] = sums[tap / kFilter][tap % kFilter][i];
    }
  }
  __syncthreads();
  for (int32 i = threadIdx.x; i < kTaps * kVector * params.vectors; i += blockDim.x) {
    const int32 column = i % params.vectors, value = i / params.vectors;
    const int32 filter = (chunk * params.vectors + column) * kVector + value % kVector;
    if (filter >= params.filters) continue;
    C total = 0;
    for (int32 j = 0; j < walkers; ++j) total += totals[value * blockDim.x + j * params.vectors + column];
    const int64 place = static_cast<int64>(part) * params.filters + filter;
    static_cast<C*>(params.parts)[place * kTaps + value / kVector] = total;
  }
}

}  // namespace dnncore::depthwise
