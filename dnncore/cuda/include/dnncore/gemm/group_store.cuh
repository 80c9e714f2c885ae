// From the accumulators of a pipeline into C: through shared memory and a fused convolution's epilogue, eight elements at a time.
#pragma once

#include "dnncore/gemm/output.cuh"
#include "dnncore/gemm/store.cuh"
#include "dnncore/gemm/tile.cuh"

namespace dnncore::gemm {

// As StagedStore, with as many rows of the tile in shared memory at a time as fit: those of one line of warps, or of all.
template <typename T, typename Tile, int kDigits>
class GroupStore {
  using Sum = typename Tile::C;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr int kRows = 64;  // at a time
  static constexpr int kColumns = Tile::kColumns;
  static constexpr int kStep = 4;   // elements of a thread at a time where they are not neighbours
  static constexpr int kDown = kRows / kGroup, kAcross = kColumns / kGroup;
  static_assert(Tile::kRows % kRows == 0 && kRows % Tile::kWarpRows == 0);
  static_assert(kRows * kColumns % (kStep * kThreads) == 0 && kRows * kAcross % kThreads == 0);

  // C's order, of rows one after the other or of columns; their pitches spread what a warp stores over the banks.
  static constexpr int kRowPitch = kColumns + 8, kColumnPitch = kRows + 4;
  static constexpr int kByRows = kRows * kRowPitch, kByColumns = kColumns * kColumnPitch;

public:
  struct alignas(16) Staged {
    Sum at[kByRows > kByColumns ? kByRows : kByColumns];
  };

  // To be called when nobody reads or copies to the slabs any more, whose memory `staged` is.
  static __device__ void store(
      const typename Tile::Accumulator& accumulator, Staged& staged, const Place& place, const Phase& phase,
      const Params& params) {
    const bool along_rows = params.c_row_stride == 1 && params.rows > 1;
#pragma unroll 1
    for (int first_row = 0; first_row < Tile::kRows; first_row += kRows) {
      if (first_row > 0) __syncthreads();
      if (Tile::first_row() / kRows * kRows == first_row) {
        if (along_rows) {
          stage<1, kColumnPitch>(accumulator, staged);
        } else {
          stage<kRowPitch, 1>(accumulator, staged);
        }
      }
      __syncthreads();
      with_output<T, Sum>(params, [&](const auto& output) {
        store_staged(output, staged, first_row, along_rows, place, phase, params);
      });
    }
  }

private:
  template <int kRowStep, int kColumnStep>
  static __device__ void stage(const typename Tile::Accumulator& accumulator, Staged& staged) {
    accumulator.for_each([&](int row, int column, Sum sum) { staged.at[row % kRows * kRowStep + column * kColumnStep] = sum; });
  }

  static __device__ const Sum* sum_at(const Staged& staged, int i, int j, bool along_rows) {
    return &staged.at[along_rows ? i + j * kColumnPitch : i * kRowPitch + j];
  }

  template <typename Output>
  static __device__ void store_staged(
      const Output& output, const Staged& staged, int first_row, bool along_rows, const Place& place, const Phase& phase,
      const Params& params) {
    const auto thread = static_cast<int>(threadIdx.x);
    uint64 addresses = reinterpret_cast<uint64>(params.c);
    if (Output::kFused && params.epilogue.is_present && params.epilogue.reads_z()) {
      addresses |= reinterpret_cast<uint64>(params.epilogue.z);
    }
    if (params.store != Store::kSingle && addresses % 16 == 0) {
#pragma unroll 1
      for (int index = thread; index < kRows * kAcross; index += kThreads) {
        const int i = along_rows ? index % kDown * kGroup : index / kAcross;
        const int j = along_rows ? index / kDown : index % kAcross * kGroup;
        store_group(output, sum_at(staged, i, j, along_rows), first_row + i, j, along_rows, place, phase, params);
      }
      return;
    }
#pragma unroll 1
    for (int first = thread; first < kRows * kColumns; first += kStep * kThreads) {
      store_elements<T, kDigits, kStep>(output, place, phase, params, [&](int e) {
        const int index = first + e * kThreads;
        const int i = along_rows ? index % kRows : index / kColumns;
        const int j = along_rows ? index / kRows : index % kColumns;
        return Element<Sum>{first_row + i, j, *sum_at(staged, i, j, along_rows)};
      });
    }
  }

  // A group begins at row i and column j of the tile.
  template <typename Output>
  static __device__ void store_group(
      const Output& output, const Sum* sums, int i, int j, bool along_rows, const Place& place, const Phase& phase,
      const Params& params) {
    const uint32 row = place.first_row + static_cast<uint32>(i), column = place.first_column + static_cast<uint32>(j);
    if (row >= params.rows || column >= phase.columns) return;
    const int64 offset = phase.c_offset + place.group * params.c_group_stride + place.split * params.split_stride +
                         column_offset<kDigits>(column, phase) + row * params.c_row_stride;
    using C = typename Output::C;
    const auto group = *reinterpret_cast<const Group<Sum>*>(sums);
    C values[kGroup];
#pragma unroll
    for (int e = 0; e < kGroup; ++e) values[e] = static_cast<C>(group.at[e]);
    if constexpr (Output::kFused) {
      const Epilogue& epilogue = params.epilogue;
      if (epilogue.is_present) {
        C z[kGroup] = {};
        if (epilogue.reads_z()) output.z(params, offset, z);
        const int64 first = static_cast<int64>(place.group) * params.rows + row;
#pragma unroll
        for (int e = 0; e < kGroup; ++e) {
          const int64 k = first + (along_rows ? e : 0);
          values[e] = epilogue.affine(values[e], epilogue.template scale_of<T>(k), epilogue.template bias_of<T>(k), z[e]);
        }
        with_mode(epilogue.activation, [&](auto chosen) {
#pragma unroll
          for (int e = 0; e < kGroup; ++e) values[e] = activate<chosen.kMode>(epilogue.activation, values[e]);
        });
      }
    }
    output.blend(params, values, offset);
  }
};

}  // namespace dnncore::gemm
