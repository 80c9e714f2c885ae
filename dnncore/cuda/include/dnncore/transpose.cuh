// Between layouts: a batch of matrices, contiguous along their columns in x and along their rows in the output. A block
// takes a tile of 32 x 32 elements through shared memory, so that both sides are read and written in whole lines; it is
// memory-bound.
//
//    x                          tile[32][33]              output
//    a b c d  <- a warp         a b c d _                 a e i m  <- a warp writes
//    e f g h     reads a row    e f g h _                 b f j n     a column of the tile
//    i j k l                    i j k l _                 c g k o
//    m n o p                    m n o p _                 d h l p
//
// Elements of 16 bits go two by two, and a tile has 64 x 64 of them: of a b over e f it makes a e and b f. Even rows of the tile
// come first, the odd ones behind them, so that neither side meets a bank twice.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/transpose.py. x is [batch, rows, columns] with stride 1 along columns; the output
// has stride 1 along rows.
struct TransposeParams {
  Blend blend;
  const void* x;
  void* output;
  int64 rows;
  int64 columns;
  int64 x_row;           // strides
  int64 output_column;
  int64 tiles;
  Divisor row_tiles;
  Divisor column_tiles;
  TensorView x_batch;
  TensorView output_batch;
};

constexpr int kTransposeTile = 32;  // _TILE in transpose.py
constexpr int kTransposeWarps = 4;  // _THREADS / 32

template <typename T>
__device__ void transpose(const TransposeParams& params) {
  constexpr int kItems = kTransposeTile / kTransposeWarps;
  __shared__ T tile[kTransposeTile][kTransposeTile + 1];  // one column more: a column's elements lie in different banks
  const int lane = threadIdx.x % kTransposeTile;
  const int warp = threadIdx.x / kTransposeTile;
  for (int64 index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const QuotientRemainder across = divide(index, params.column_tiles);
    const QuotientRemainder down = divide(across.quotient, params.row_tiles);
    const int64 first_row = down.remainder * kTransposeTile;
    const int64 first_column = across.remainder * kTransposeTile;
    const T* x = static_cast<const T*>(params.x) + offset_of(params.x_batch, down.quotient);
    T* output = static_cast<T*>(params.output) + offset_of(params.output_batch, down.quotient);
    T values[kItems];  // all loads before the first store
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int64 row = first_row + warp + item * kTransposeWarps;
      const int64 column = first_column + lane;
      if (row < params.rows && column < params.columns) values[item] = x[row * params.x_row + column];
    }
#pragma unroll
    for (int item = 0; item < kItems; ++item) tile[warp + item * kTransposeWarps][lane] = values[item];
    __syncthreads();
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int64 row = first_row + lane;
      const int64 column = first_column + warp + item * kTransposeWarps;
      if (row < params.rows && column < params.columns) {
        blend_into(params.blend, widen(tile[lane][warp + item * kTransposeWarps]), output + column * params.output_column + row);
      }
    }
    __syncthreads();  // before the next tile overwrites this one
  }
}

// Store two neighbours of the output.
template <typename T>
__device__ __forceinline__ void store_pair(const Blend& blend, uint32 pair, T* output) {
  if (blend.alpha == 1.0 && blend.beta == 0.0) {
    *reinterpret_cast<uint32*>(output) = pair;
    return;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto bits = static_cast<unsigned short>(pair >> (16 * i));
    T value;
    memcpy(&value, &bits, sizeof value);
    blend_into(blend, widen(value), output + i);
  }
}

// All extents and strides are even, and both matrices begin at a word.
template <typename T>
__device__ void transpose_pairs(const TransposeParams& params) {
  constexpr int kPairs = kTransposeTile, kTile = 2 * kPairs, kItems = kTile / kTransposeWarps;
  __shared__ uint32 tile[kTile][kPairs + 1];
  const int lane = threadIdx.x % kPairs;
  const int warp = threadIdx.x / kPairs;
  for (int64 index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const QuotientRemainder across = divide(index, params.column_tiles);
    const QuotientRemainder down = divide(across.quotient, params.row_tiles);
    const auto first_row = static_cast<int64>(down.remainder) * kTile, first_column = static_cast<int64>(across.remainder) * kTile;
    const T* x = static_cast<const T*>(params.x) + offset_of(params.x_batch, down.quotient) + first_row * params.x_row + first_column;
    T* output = static_cast<T*>(params.output) + offset_of(params.output_batch, down.quotient) + first_column * params.output_column + first_row;
    const auto rows = static_cast<int>(min(params.rows - first_row, int64{kTile}));
    const auto columns = static_cast<int>(min(params.columns - first_column, int64{kTile}));
    uint32 values[kItems];  // all loads before the first store
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int row = warp + item * kTransposeWarps;
      if (row < rows && 2 * lane < columns) values[item] = *reinterpret_cast<const uint32*>(x + row * params.x_row + 2 * lane);
    }
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int row = warp + item * kTransposeWarps;
      tile[row / 2 + row % 2 * kPairs][lane] = values[item];
    }
    __syncthreads();
#pragma unroll
    for (int item = 0; item < kItems / 2; ++item) {
      const int pair = warp + item * kTransposeWarps;
      if (2 * lane < rows && 2 * pair < columns) {
        const uint32 above = tile[lane][pair], below = tile[kPairs + lane][pair];
        T* place = output + 2 * pair * params.output_column + 2 * lane;
        store_pair(params.blend, __byte_perm(above, below, 0x5410), place);
        store_pair(params.blend, __byte_perm(above, below, 0x7632), place + params.output_column);
      }
    }
    __syncthreads();  // before the next tile overwrites this one
  }
}

}  // namespace dnncore
