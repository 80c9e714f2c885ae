// Between layouts: a batch of matrices, contiguous along their columns in x and along their rows in the output. A block
// takes a tile of 32 x 32 elements through shared memory, so that both sides are read and written in whole lines; it is
// memory-bound.
//
//    x                          tile[32][33]              output
//    a b c d  <- a warp         a b c d _                 a e i m  <- a warp writes
//    e f g h     reads a row    e f g h _                 b f j n     a column of the tile
//    i j k l                    i j k l _                 c g k o
//    m n o p                    m n o p _                 d h l p
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

}  // namespace dnncore
