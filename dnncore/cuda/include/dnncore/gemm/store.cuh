// From the threads' accumulators into C. PlainStore writes straight from the registers, 16 bytes at a time where C
// allows it. StagedStore first moves the sums through shared memory, whose slabs are no longer needed, and applies the
// epilogue of a fused convolution. What they store are a block's own sums or, where it joins the parts of a reduction,
// their totals. Place and column_offset say where in C a block and a column are.
#pragma once

#include <type_traits>

#include "dnncore/gemm/output.cuh"
#include "dnncore/gemm/params.cuh"
#include "dnncore/gemm/parts.cuh"
#include "dnncore/gemm/tile.cuh"

namespace dnncore::gemm {

// Where a block works.
struct Place {
  uint32 first_row;
  uint32 first_column;
  uint32 split;
  uint32 group;
  uint32 phase;

  // Row tiles are fastest: blocks that run at the same time then share columns of B, the larger operand, in the L2
  // cache.
  template <int kRows, int kColumns>
  static __device__ Place of_block(const Params& params) {
    uint32 rest = blockIdx.x;
    const auto next = [&rest](uint32 extent) {
      const uint32 value = rest % extent;
      rest /= extent;
      return value;
    };
    Place place;
    place.first_row = next(params.row_tiles) * kRows;
    place.first_column = next(params.column_tiles) * kColumns;
    place.split = next(params.splits);
    place.group = next(params.groups);
    place.phase = rest;
    return place;
  }
};

// Elements of C from the beginning of its group to the first row of a column.
template <int kDigits>
__device__ int64 column_offset(uint32 column, const Phase& phase) {
  if (phase.c_column_step != 0) return column * phase.c_column_step;
  int64 offset = 0;
  for_each_digit<kDigits>(
      column, phase.column, [&](const Digit& digit, int32 value) { offset += value * digit.other_stride; });
  return offset;
}

template <typename T, typename Tile, int kDigits>
struct PlainStore {
  using Accumulator = typename Tile::Accumulator;

  static __device__ void store(const Accumulator& accumulator, const Place& place, const Phase& phase, const Params& params) {
    T* const c = static_cast<T*>(params.c) +
                   (phase.c_offset + place.group * params.c_group_stride + place.split * params.split_stride);
    const bool aligned = reinterpret_cast<uint64>(c) % (Tile::kVector * sizeof(T)) == 0;
    if (aligned && params.store == Store::kColumns) {
      store_vectors<1, Tile::kVector>(accumulator, c, place, phase, params);
    } else if (aligned && params.store == Store::kRows) {
      store_vectors<Tile::kVector, 1>(accumulator, c, place, phase, params);
    } else {
      store_vectors<1, 1>(accumulator, c, place, phase, params);
    }
  }

  // Store the totals of all parts, vectors of neighbours along the columns at once or one by one.
  static __device__ void store(const Parts<Tile>& parts, const Place& place, const Phase& phase, const Params& params) {
    T* const c = static_cast<T*>(params.c) + (phase.c_offset + place.group * params.c_group_stride);
    const bool aligned = reinterpret_cast<uint64>(c) % (Tile::kVector * sizeof(T)) == 0;
    const bool at_once = aligned && params.store == Store::kColumns;
    constexpr int kAtATime = Parts<Tile>::kSums < 8 ? Parts<Tile>::kSums : 8;  // each has code of its own
    parts.template for_each_group<kAtATime>([&](int n, const auto& totals, const auto& positions) {
#pragma unroll
      for (int i = 0; i < kAtATime; i += Tile::kVector) {
        const uint32 row = place.first_row + static_cast<uint32>(positions.row(n + i));
        const uint32 first = place.first_column + static_cast<uint32>(positions.column(n + i));
        if (row >= params.rows || first >= phase.columns) continue;
        T* const of_row = c + row * params.c_row_stride;
        if (at_once) {
          auto* const group = reinterpret_cast<Vector<T>*>(of_row + column_offset<kDigits>(first, phase));
          Vector<T> values;
#pragma unroll
          for (int e = 0; e < Tile::kVector; ++e) values.at[e] = blended(params.blend, totals[i + e], &group->at[e]);
          *group = values;
          continue;
        }
#pragma unroll
        for (int e = 0; e < Tile::kVector; ++e) {
          const uint32 column = first + static_cast<uint32>(e);
          if (column >= phase.columns) break;
          blend_into(params.blend, totals[i + e], of_row + column_offset<kDigits>(column, phase));
        }
      }
    });
  }

  // Store kHeight x kWidth elements at a time, one of the two being 1.
  template <int kHeight, int kWidth>
  static __device__ void store_vectors(
      const Accumulator& accumulator, T* c, const Place& place, const Phase& phase, const Params& params) {
    constexpr int kSize = kHeight * kWidth;
#pragma unroll
    for (int j = 0; j < Tile::kColumnsPerThread; j += kWidth) {
      const uint32 column = place.first_column + static_cast<uint32>(Tile::column(j));
      if (column >= phase.columns) continue;
      const int64 offset = column_offset<kDigits>(column, phase);
#pragma unroll
      for (int i = 0; i < Tile::kRowsPerThread; i += kHeight) {
        const uint32 row = place.first_row + static_cast<uint32>(Tile::row(i));
        if (row >= params.rows) continue;
        T* const first = c + offset + row * params.c_row_stride;
        struct alignas(kSize * sizeof(T)) Group {
          T at[kSize];
        } group;
#pragma unroll
        for (int e = 0; e < kSize; ++e) {
          group.at[e] = blended(params.blend, accumulator.at[i + e % kHeight][j + e % kWidth], first + e);
        }
        *reinterpret_cast<Group*>(first) = group;
      }
    }
  }
};

// One sum of a tile, and its position in the tile.
template <typename Sum>
struct Element {
  int row;
  int column;
  Sum sum;
};

// Finish and store kStep sums of products of T, one by one; element(e) returns them.
template <typename T, int kDigits, int kStep, typename Output, typename ElementAt>
__device__ void store_elements(
    const Output& output, const Place& place, const Phase& phase, const Params& params, const ElementAt& element) {
  const int64 start = phase.c_offset + place.group * params.c_group_stride + place.split * params.split_stride;
  const Epilogue& epilogue = params.epilogue;
  using C = typename Output::C;
  C values[kStep] = {};
  int64 offsets[kStep], channels[kStep];
  bool exists[kStep];
#pragma unroll
  for (int e = 0; e < kStep; ++e) {
    const auto [i, j, sum] = element(e);
    const uint32 row = place.first_row + static_cast<uint32>(i), column = place.first_column + static_cast<uint32>(j);
    exists[e] = row < params.rows && column < phase.columns;
    if (!exists[e]) continue;
    offsets[e] = start + column_offset<kDigits>(column, phase) + row * params.c_row_stride;
    channels[e] = static_cast<int64>(place.group) * params.rows + row;
    values[e] = static_cast<C>(sum);
  }
  if constexpr (Output::kFused) {
    if (epilogue.is_present) {
      C z[kStep] = {}, scales[kStep] = {}, biases[kStep] = {};
#pragma unroll
      for (int e = 0; e < kStep; ++e) {  // all loads before the first is needed
        if (exists[e] && epilogue.reads_z()) z[e] = output.z(params, offsets[e]);
        if (exists[e]) scales[e] = epilogue.template scale_of<T>(channels[e]);
        if (exists[e]) biases[e] = epilogue.template bias_of<T>(channels[e]);
      }
#pragma unroll
      for (int e = 0; e < kStep; ++e) values[e] = epilogue.affine(values[e], scales[e], biases[e], z[e]);
      with_mode(epilogue.activation, [&](auto chosen) {
#pragma unroll
        for (int e = 0; e < kStep; ++e) values[e] = activate<chosen.kMode>(epilogue.activation, values[e]);
      });
    }
  }
#pragma unroll
  for (int e = 0; e < kStep; ++e) {
    if (exists[e]) output.blend(params, values[e], offsets[e]);
  }
}

// Moves the sums through shared memory, so that the code of the epilogue exists once, for a few elements, rather than
// once for each of a thread's many, and so that neighbouring threads write neighbouring elements. T is the type of the
// operands.
template <typename T, typename Tile, int kDigits>
struct StagedStore {
  using Sum = typename Tile::C;
  using Staged = Sum[Tile::kRows][Tile::kColumns + 1];  // one column more: neither rows nor columns share a bank
  static constexpr int kStep = 4;                     // elements per thread at a time
  static_assert(Tile::kRows * Tile::kColumns % (kStep * Tile::kThreads) == 0);

  // To be called once no thread reads the slabs or copies to them any more: `staged` is their memory. Sums are an
  // accumulator or the parts of a reduction.
  template <typename Sums>
  static __device__ void store(
      const Sums& sums, Staged& staged, const Place& place, const Phase& phase, const Params& params) {
    sums.for_each([&](int row, int column, Sum sum) { staged[row][column] = sum; });
    __syncthreads();
    const bool along_rows = params.c_row_stride == 1 && params.rows > 1;
    with_output<T, Sum>(params, [&](const auto& output) {
#pragma unroll 1
      for (int first = 0; first < Tile::kRows * Tile::kColumns; first += kStep * Tile::kThreads) {
        store_elements<T, kDigits, kStep>(output, place, phase, params, [&](int e) {
          const int index = first + e * Tile::kThreads + static_cast<int>(threadIdx.x);
          const int i = along_rows ? index % Tile::kRows : index / Tile::kColumns;
          const int j = along_rows ? index / Tile::kRows : index % Tile::kColumns;
          return Element<Sum>{i, j, staged[i][j]};
        });
      }
    });
  }
};

}  // namespace dnncore::gemm
