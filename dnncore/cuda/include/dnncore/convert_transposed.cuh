// Between layouts and between element types at once: filters of a step under autocast, which matrix units want in 16 bits with their
// channels innermost, and the gradients of these on their way back. A batch of matrices, contiguous along their columns in a and along
// their rows in c, goes through tiles in shared memory, so that both sides are read and written in whole lines; it is memory-bound.
//
// Filters have few taps: a tile has all columns where these are few, or all rows, and so many of the others that it is full. It is one
// row of places to the threads, which find by a division where theirs is, so that none is idle:
//
//    a, 3 taps               tile[rows][pitch]      c
//    0 1 2  3 4 5  6 7 8 ..  0 1 2 | 3 4 5 | ..     0 3 6 9 ..  1 4 7 10 ..  2 5 8 11 ..
//
// The pitch is odd, so that neither side meets a bank twice. Two neighbours of 16 bits are one word, where they begin at one.
#pragma once

#include "dnncore/common/loaded.cuh"

namespace dnncore {

// _PARAMS in convert_transposed.py. a is [batch, rows, columns] with stride 1 along columns; c has stride 1 along rows.
struct ConvertTransposedParams {
  Blend blend;
  const void* a;
  void* c;
  int64 rows;
  int64 columns;
  int64 a_row;  // strides
  int64 c_column;
  int64 tiles;
  Divisor row_tiles;
  Divisor column_tiles;
  SmallDivisor tile_rows;
  SmallDivisor tile_columns;
  TensorView a_batch;
  TensorView c_batch;
};

constexpr int kConvertTransposedPlaces = 2112;  // PLACES in convert_transposed.py
constexpr int kConvertTransposedThreads = 128;  // _THREADS

// Where a word of kWidth neighbours is in a tile, whose lines have `whole` elements that lie one behind the other.
struct WordOfTile {
  int line;
  int element;

  template <int kWidth>
  static __device__ __forceinline__ WordOfTile of(int number, const SmallDivisor& whole) {
    const SmallQuotientRemainder split = divide(number * kWidth, whole);
    return {split.quotient, split.remainder};
  }
};

// Whether the words of lines that are `step` apart, of which a whole one has `whole` elements and this one `length`, are words of
// memory.
template <typename T>
__device__ __forceinline__ bool in_pairs(const T* memory, int64 step, int length, int whole) {
  return sizeof(T) == 2 && (step | length | whole) % 2 == 0 && reinterpret_cast<uint64>(memory) % (2 * sizeof(T)) == 0;
}

template <typename From, typename To>
__device__ void convert_transposed(const ConvertTransposedParams& params) {
  __shared__ float tile[kConvertTransposedPlaces];
  const int pitch = params.tile_columns.value | 1;
  for (int64 index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const QuotientRemainder across = divide(index, params.column_tiles);
    const QuotientRemainder down = divide(across.quotient, params.row_tiles);
    const int64 first_row = down.remainder * params.tile_rows.value, first_column = across.remainder * params.tile_columns.value;
    const auto rows = static_cast<int>(min(params.rows - first_row, int64{params.tile_rows.value}));
    const auto columns = static_cast<int>(min(params.columns - first_column, int64{params.tile_columns.value}));
    const From* a = static_cast<const From*>(params.a) + offset_of(params.a_batch, down.quotient) + first_row * params.a_row + first_column;
    To* c = static_cast<To*>(params.c) + offset_of(params.c_batch, down.quotient) + first_column * params.c_column + first_row;

    const auto read = [&]<int kWidth>(Vector<int, kWidth>) {
      constexpr int kWords = 4;  // all their loads before the first store
      const int words = params.tile_rows.value * params.tile_columns.value / kWidth;
      for (int first = static_cast<int>(threadIdx.x); first < words; first += kWords * kConvertTransposedThreads) {
        Vector<From, kWidth> found[kWords];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          const auto at = WordOfTile::of<kWidth>(first + i * kConvertTransposedThreads, params.tile_columns);
          const bool there = at.line < rows && at.element < columns;
          if (there) found[i] = *reinterpret_cast<const Vector<From, kWidth>*>(a + at.line * params.a_row + at.element);
        }
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          const auto at = WordOfTile::of<kWidth>(first + i * kConvertTransposedThreads, params.tile_columns);
          if (at.line >= rows || at.element >= columns) continue;
#pragma unroll
          for (int lane = 0; lane < kWidth; ++lane) tile[at.line * pitch + at.element + lane] = widen(found[i].at[lane]);
        }
      }
    };
    const auto write = [&]<int kWidth>(Vector<int, kWidth>) {
      const int words = params.tile_rows.value * params.tile_columns.value / kWidth;
#pragma unroll 4
      for (int word = static_cast<int>(threadIdx.x); word < words; word += kConvertTransposedThreads) {
        const auto at = WordOfTile::of<kWidth>(word, params.tile_rows);
        if (at.line >= columns || at.element >= rows) continue;
        auto* const place = reinterpret_cast<Vector<To, kWidth>*>(c + at.line * params.c_column + at.element);
        Vector<To, kWidth> values{};
        if (params.blend.beta != 0.0) values = *place;
#pragma unroll
        for (int lane = 0; lane < kWidth; ++lane) {
          blend_into(params.blend, tile[(at.element + lane) * pitch + at.line], &values.at[lane]);
        }
        *place = values;
      }
    };
    if (in_pairs(a, params.a_row, columns, params.tile_columns.value)) {
      read(Vector<int, 2>{});
    } else {
      read(Vector<int, 1>{});
    }
    __syncthreads();
    if (in_pairs(c, params.c_column, rows, params.tile_rows.value)) {
      write(Vector<int, 2>{});
    } else {
      write(Vector<int, 1>{});
    }
    __syncthreads();  // before the next tile overwrites this one
  }
}

}  // namespace dnncore
