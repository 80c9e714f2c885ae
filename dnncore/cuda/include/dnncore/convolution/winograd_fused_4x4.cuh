// F(4x4, 3x3) in one kernel: both operands are transformed on the way into shared memory, the results on the way out. A
// block computes kFilters filters at kTiles tiles and goes through the channels in slabs. Each of its 12 warps owns
// three of the 36 points and multiplies their matrices, kFilters x kTiles over a slab's channels, in registers: that is
// three warps per scheduler, where nine warps of four points would give one scheduler three and the others two.
//
// One thread cannot hold a tile's 36 inputs beside its sums, so a slab's operands take three steps, each while other
// slabs are at the other steps. With two of everything in shared memory, one barrier per slab is enough. While slab n
// is multiplied:
//
//    slab n + 3    global memory -> registers       a thread reads a column of a tile, and one of a filter
//    slab n + 2    registers     -> lines[n % 2]    it transforms that column: 6 numbers, one for each line
//    slab n + 1    lines         -> slabs           a thread transforms a line of 6 columns to 6 points
//    slab n        slabs[n % 2]  -> sums            warp w multiplies points 3 w to 3 w + 2
#pragma once

#include "dnncore/convolution/winograd_output.cuh"
#include "dnncore/gemm/tile.cuh"

namespace dnncore::winograd {

// T has 32 or 16 bits: in double, the sums of a block alone would fill more than all registers.
template <typename T>
struct Fused4x4 {
  using C = Compute<T>;
  using Vector = gemm::Vector<C>;
  static_assert(sizeof(C) == 4);
  static constexpr int kVector = Vector::kSize;
  static constexpr int kThreads = 384;
  static constexpr int kSide = F4::kPoints;
  static constexpr int kPoints = kSide * kSide;
  static constexpr int kPointsPerWarp = kPoints / (kThreads / 32);
  static constexpr int kTaps = 3;
  static constexpr int kSlab = 2;  // channels
  // A warp is 4 threads along the filters, each with two vectors a whole warp apart, by 8 along the tiles, each with
  // one.
  static constexpr int kRows = 4;
  static constexpr int kColumns = 8;
  static constexpr int kFilterVectors = 2;
  static constexpr int kFiltersPerThread = kFilterVectors * kVector;
  static constexpr int kFilters = kRows * kFiltersPerThread;
  static constexpr int kTiles = kColumns * kVector;
  static constexpr int kPerRound = 2;  // filters per thread that are transformed back at a time
  static constexpr int kRoundFilters = kRows * kPerRound;
  static_assert(kThreads == kTiles * kSlab * kSide && kFilters == 32 && kTiles == 32 && kPoints % (kThreads / 32) == 0);

  struct Slab {
    C filters[kPoints][kSlab][kFilters];
    C tiles[kPoints][kSlab][kTiles];
  };
  // Operands whose columns are transformed: a line holds one tile, or one filter, after another.
  static constexpr int kFilterPitch = kSlab * kTaps + 1;  // odd: 32 filters lie in different banks
  struct Lines {
    C tiles[kSide][kSlab * kTiles * kSide];
    C filters[kSide][kFilters * kFilterPitch];
  };
  struct Stages {
    Slab slabs[2];
    Lines lines[2];
  };
  union Shared {
    alignas(16) Stages stages;
    alignas(16) C sums[kPoints][kRoundFilters][kTiles + 2 * kVector];  // padding: a warp's rows in different banks
  };

  static_assert(sizeof(Shared) == 66048);  // shared_bytes of dnncore/cuda/convolution/winograd.py

  // A column of one filter of one channel; half of the threads have one.
  struct FilterColumn {
    const T* next;
    int place;                // in a line
    int32 channels_left = 0;  // where it is 0 or less, zeros are read
    T taps[kTaps];

    // Neighbouring threads have neighbouring taps, then channels.
    __device__ FilterColumn(const Params& params, int group, int first_filter) {
      const int column = static_cast<int>(threadIdx.x) % kTaps, channel = static_cast<int>(threadIdx.x) / kTaps % kSlab;
      const int filter = static_cast<int>(threadIdx.x) / (kTaps * kSlab);
      const int64 k = first_filter + filter;
      place = filter * kFilterPitch + channel * kTaps + column;
      if (mine() && k < params.filters.value) channels_left = static_cast<int32>(params.channels.value) - channel;
      next = static_cast<const T*>(params.filter) + params.filter_offset + group * params.filter_group_stride +
             k * params.filter_strides[0] + channel * params.filter_strides[1] + column * params.filter_strides[3];
    }

    static __device__ bool mine() { return threadIdx.x < kTaps * kSlab * kFilters; }

    __device__ __forceinline__ void read(const Params& params) {
      const T* tap = next;
#pragma unroll
      for (int i = 0; i < kTaps; ++i, tap += params.filter_strides[2]) taps[i] = channels_left > 0 ? *tap : T{};
      next += kSlab * params.filter_strides[1];
      channels_left -= kSlab;
    }

    __device__ __forceinline__ void store(Lines& lines) const {
      if (!mine()) return;
      C column[kTaps], transformed[kSide];
#pragma unroll
      for (int i = 0; i < kTaps; ++i) column[i] = widen(taps[i]);
      F4::Filter{}(column, transformed);
#pragma unroll
      for (int i = 0; i < kSide; ++i) lines.filters[i][place] = transformed[i];
    }
  };

  // A column of one tile of one channel.
  struct TileColumn {
    const T* next;
    uint32 inside = 0;  // which of the 6 inputs are not padding
    int32 channels_left = 0;
    T pixels[kSide];

    // Neighbouring threads have neighbouring columns, then tiles.
    __device__ TileColumn(const Params& params, int group, int64 first_tile) {
      const int64 tile = first_tile + static_cast<int>(threadIdx.x) / kSide % kTiles;
      const int channel = static_cast<int>(threadIdx.x) / (kSide * kTiles);
      next = nullptr;
      if (tile >= params.tiles.value) return;
      const Place place = Place::of<F4::kOutputs>(static_cast<int32>(tile), params);
      const int32 row = place.row - params.top;
      const int32 column = place.column - params.left + static_cast<int32>(threadIdx.x) % kSide;
      if (column >= 0 && column < params.input_columns) {
#pragma unroll
        for (int i = 0; i < kSide; ++i) inside |= static_cast<uint32>(row + i >= 0 && row + i < params.input_rows) << i;
      }
      channels_left = static_cast<int32>(params.channels.value) - channel;
      next = static_cast<const T*>(params.input) + place.image * params.input_strides[0] +
             (group * params.channels.value + channel) * params.input_strides[1] + row * params.input_strides[2] +
             column * params.input_strides[3];
    }

    __device__ __forceinline__ void read(const Params& params) {
      const uint32 wanted = channels_left > 0 ? inside : 0;
      const T* pixel = next;
#pragma unroll
      for (int i = 0; i < kSide; ++i, pixel += params.input_strides[2]) pixels[i] = wanted & (1u << i) ? *pixel : T{};
      next += kSlab * params.input_strides[1];
      channels_left -= kSlab;
    }

    __device__ __forceinline__ void store(Lines& lines) const {
      C column[kSide], transformed[kSide];
#pragma unroll
      for (int i = 0; i < kSide; ++i) column[i] = widen(pixels[i]);
      F4::Input{}(column, transformed);
#pragma unroll
      for (int i = 0; i < kSide; ++i) lines.tiles[i][threadIdx.x] = transformed[i];
    }
  };

  // A warp takes one line of one channel, each lane for one filter and one tile.
  static __device__ __forceinline__ void transform_lines(const Lines& lines, Slab& slab) {
    const int lane = static_cast<int>(threadIdx.x) % 32, channel = static_cast<int>(threadIdx.x) / 32 % kSlab;
    const int line = static_cast<int>(threadIdx.x) / (32 * kSlab);
    C taps[kTaps], pixels[kSide], points[kSide];
#pragma unroll
    for (int i = 0; i < kTaps; ++i) taps[i] = lines.filters[line][lane * kFilterPitch + channel * kTaps + i];
    F4::Filter{}(taps, points);
#pragma unroll
    for (int i = 0; i < kSide; ++i) slab.filters[line * kSide + i][channel][lane] = points[i];
    const C* const first = &lines.tiles[line][(channel * kTiles + lane) * kSide];
#pragma unroll
    for (int i = 0; i < kSide; i += 2) {
      const Pair<C> pair = *reinterpret_cast<const Pair<C>*>(first + i);
      pixels[i] = pair.at[0];
      pixels[i + 1] = pair.at[1];
    }
    F4::Input{}(pixels, points);
#pragma unroll
    for (int i = 0; i < kSide; ++i) slab.tiles[line * kSide + i][channel][lane] = points[i];
  }

  // Sums of a thread's filters and tiles at its warp's points.
  struct Accumulator {
    C at[kPointsPerWarp][kFiltersPerThread][kVector] = {};
    int first_point;
    int row;
    int column;

    // Lane bits 4 and 0 give the row, bits 3 to 1 the column; gemm::Tile says why.
    __device__ Accumulator() {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      first_point = static_cast<int>(threadIdx.x) / 32 * kPointsPerWarp;
      row = lane / 16 * 2 + lane % 2;
      column = lane % 16 / 2;
    }

    __device__ __forceinline__ void multiply_add(const Slab& slab) {
#pragma unroll 1  // with two channels' operands under way at once, registers spill
      for (int channel = 0; channel < kSlab; ++channel) {
#pragma unroll
        for (int point = 0; point < kPointsPerWarp; ++point) {
          const C* const filters = &slab.filters[first_point + point][channel][row * kVector];
          const Vector t = *reinterpret_cast<const Vector*>(&slab.tiles[first_point + point][channel][column * kVector]);
          Vector f[kFilterVectors];
#pragma unroll
          for (int v = 0; v < kFilterVectors; ++v) f[v] = *reinterpret_cast<const Vector*>(filters + v * kRows * kVector);
          const auto multiply = [&](int i, int j) { at[point][i][j] += f[i / kVector].at[i % kVector] * t.at[j]; };
          // In blocks of 2 x 2, there and back, as in gemm::Tile and for the same reason: register banks.
#pragma unroll
          for (int i = 0; i < kFiltersPerThread; i += 2) {
#pragma unroll
            for (int step = 0; step < kVector; step += 2) {
              const int j = i % 4 == 0 ? step : kVector - 2 - step;
              multiply(i, j);
              multiply(i, j + 1);
              multiply(i + 1, j + 1);
              multiply(i + 1, j);
            }
          }
        }
      }
    }

    // Hand the sums of kPerRound filters, times a factor, to the threads that transform them back.
    template <int kRound>
    __device__ __forceinline__ void share(C alpha, Shared& shared) const {
#pragma unroll
      for (int point = 0; point < kPointsPerWarp; ++point) {
#pragma unroll
        for (int i = 0; i < kPerRound; ++i) {
          Vector sums;
#pragma unroll
          for (int j = 0; j < kVector; ++j) sums.at[j] = alpha * at[point][kRound * kPerRound + i][j];
          *reinterpret_cast<Vector*>(&shared.sums[first_point + point][row * kPerRound + i][column * kVector]) = sums;
        }
      }
    }

    // Which of the block's filters a row of Shared::sums belongs to.
    template <int kRound>
    static __device__ int filter_of(int shared_row) {
      constexpr int kFirst = kRound * kPerRound;
      return kFirst / kVector * kRows * kVector + shared_row / kPerRound * kVector + kFirst % kVector +
             shared_row % kPerRound;
    }
  };

  using Outputs = OutputTile<T, F4>;

  // In every round, each thread of the first kRoundFilters warps writes the outputs of one filter at its tile.
  template <int kRound>
  static __device__ __forceinline__ void finish(
      const Accumulator& accumulator, const Outputs& outputs, Shared& shared, int first_filter, const Params& params) {
    if constexpr (kRound < kFiltersPerThread / kPerRound) {
      __syncthreads();  // no thread still reads what is overwritten below
      accumulator.template share<kRound>(Outputs::sum_factor(params), shared);
      __syncthreads();
      const int row = static_cast<int>(threadIdx.x) / kTiles, tile = static_cast<int>(threadIdx.x) % kTiles;
      const int64 filter = first_filter + Accumulator::template filter_of<kRound>(row);
      if (row < kRoundFilters && outputs.exists() && filter < params.filters.value) {
        C points[kSide][kSide];
#pragma unroll
        for (int i = 0; i < kPoints; ++i) points[i / kSide][i % kSide] = shared.sums[i][row][tile];
        outputs.write(points, filter, params);
      }
      finish<kRound + 1>(accumulator, outputs, shared, first_filter, params);
    }
  }

  static __device__ void run(const Params& params, Shared& shared) {
    // Filter blocks are fastest: blocks that run at the same time share tiles, the larger operand, in the L2 cache.
    const SmallQuotientRemainder filter_block = divide(static_cast<int32>(blockIdx.x), params.filter_blocks);
    const SmallQuotientRemainder tile_block = divide(filter_block.quotient, params.tile_blocks);
    const int group = tile_block.quotient, first_filter = filter_block.remainder * kFilters;
    const int64 first_tile = static_cast<int64>(tile_block.remainder) * kTiles;

    Accumulator accumulator;
    {
      Slab(&slabs)[2] = shared.stages.slabs;
      Lines(&lines)[2] = shared.stages.lines;
      FilterColumn filter(params, group, first_filter);
      TileColumn tile(params, group, first_tile);
      const auto read = [&] {
        filter.read(params);
        tile.read(params);
      };
      const auto transform_columns = [&](Lines& to) {
        filter.store(to);
        tile.store(to);
      };
      const int count = static_cast<int>((params.channels.value + kSlab - 1) / kSlab);
      read();
      transform_columns(lines[0]);
      read();
      __syncthreads();
      transform_lines(lines[0], slabs[0]);
      transform_columns(lines[1]);
      read();
      __syncthreads();
      for (int slab = 0; slab < count; ++slab) {  // past the last slab come zeros, which are not multiplied
        transform_lines(lines[(slab + 1) % 2], slabs[(slab + 1) % 2]);
        accumulator.multiply_add(slabs[slab % 2]);
        transform_columns(lines[slab % 2]);
        read();
        __syncthreads();
      }
    }
    const Outputs outputs(params, group, first_tile + threadIdx.x % kTiles);
    finish<0>(accumulator, outputs, shared, first_filter, params);
  }
};

template <typename T>
__device__ __forceinline__ void fused_4x4(const Params& params) {
  extern __shared__ __align__(16) unsigned char shared[];
  Fused4x4<T>::run(params, *reinterpret_cast<typename Fused4x4<T>::Shared*>(shared));
}

}  // namespace dnncore::winograd
