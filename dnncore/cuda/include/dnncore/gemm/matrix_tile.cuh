// The block tile for operands of 16 or 8 bits: which warp computes which outputs, and the product of two slabs on the
// tensor cores. A warp holds kRowFragments x kColumnFragments blocks of 16 x 8 sums in registers, four sums of each
// block per thread, in fp32 or, for int8, in int32. Rows and columns keep their reduction contiguous in a slab, as
// ldmatrix wants it. Tensor cores round fp32 sums towards zero [measured on an H200: dnncore/cuda/gemm/tiling.py], so
// small tiles, which have the room, carry them over into totals now and then.
//
//              kColumns = kWarpsAcross * kWarpColumns
//            +------------------+------------------+
//            | warp 0           | warp 1           |       a warp:   16 x 8 | 16 x 8 | ...    kColumnFragments
//    kRows   |                  |                  |                 -------+--------+-----
//            +------------------+------------------+                 16 x 8 | 16 x 8 | ...
//            | warp 2           | warp 3           |                 kRowFragments of them down
//            |                  |                  |
//            +------------------+------------------+       one instruction: kStep, 32 bytes, of the reduction
#pragma once

#include <type_traits>

#include "dnncore/common/tensor.cuh"
#include "dnncore/ptx/matrix.cuh"

namespace dnncore::gemm {

// kWarpsDown x kWarpsAcross warps, each with kRowFragments x kColumnFragments blocks of 16 x 8 outputs.
template <typename Element, int kWarpsDown, int kWarpsAcross, int kRowFragments, int kColumnFragments, int kSlabDepth>
struct MatrixTile {
  using T = Element;
  using C = std::conditional_t<std::is_same_v<T, int8>, int32, float>;
  static constexpr int kThreads = 32 * kWarpsDown * kWarpsAcross;
  static constexpr int kWarpRows = 16 * kRowFragments;
  static constexpr int kWarpColumns = 8 * kColumnFragments;
  static constexpr int kRows = kWarpsDown * kWarpRows;
  static constexpr int kColumns = kWarpsAcross * kWarpColumns;
  static constexpr int kDepth = kSlabDepth;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kStep = 2 * kVector;  // of the reduction, per instruction
  // Whether sums are carried over into totals from time to time; `longest_sum` in dnncore/cuda/gemm/tiling.py says why.
  static constexpr bool kHasTotals = std::is_same_v<C, float> && kRows * kColumns <= 2048;
  static_assert(kDepth % kStep == 0 && kColumnFragments % 2 == 0 && kDepth % kColumnFragments == 0);
  // A slab holds one row, or column, after another, each with its reduction contiguous and 16 bytes of padding behind
  // it: eight neighbours then lie in different banks.
  static constexpr int kPitch = kDepth + kVector;
  static constexpr bool kReductionFirst = false;
  using SlabA = T[kRows][kPitch];
  using SlabB = T[kColumns][kPitch];

  // The first row and column of this warp in the tile.
  static __device__ int first_row() { return static_cast<int>(threadIdx.x) / 32 / kWarpsAcross * kWarpRows; }
  static __device__ int first_column() { return static_cast<int>(threadIdx.x) / 32 % kWarpsAcross * kWarpColumns; }

  // Where in the tile a thread's n-th sum is: block by block, along the columns first.
  struct Positions {
    int first_row;
    int first_column;

    __device__ explicit Positions(int thread) {
      first_row = thread / 32 / kWarpsAcross * kWarpRows + thread % 32 / 4;
      first_column = thread / 32 % kWarpsAcross * kWarpColumns + thread % 4 * 2;
    }
    __device__ int row(int n) const { return first_row + n / 4 / kColumnFragments * 16 + n % 4 / 2 * 8; }
    __device__ int column(int n) const { return first_column + n / 4 % kColumnFragments * 8 + n % 2; }
  };

  // What a warp multiplies at a time, kStep of the reduction: blocks of 16 rows, and of 16 columns.
  using RowFragments = uint32[kRowFragments][4];
  using ColumnFragments = uint32[kColumnFragments / 2][4];

  // The sums of earlier slabs. Each thread has its own, and those of neighbouring threads lie side by side.
  struct EveryTotal {
    C at[kRowFragments * kColumnFragments * 4][kThreads];
  };
  struct NoTotal {};
  using Totals = std::conditional_t<kHasTotals, EveryTotal, NoTotal>;

  struct Accumulator {
    C at[kRowFragments][kColumnFragments][4] = {};

    // Add the sums to the totals, or set the totals the first time, and begin again at zero.
    __device__ void carry_over(Totals& totals, bool is_first) {
      each_total(totals, [&](C& sum, C& total) {
        total = is_first ? sum : total + sum;
        sum = 0;
      });
    }
    __device__ void add(Totals& totals) {
      each_total(totals, [](C& sum, C& total) { sum += total; });
    }

    // meanwhile(part) is called once for each of kDepth parts, for work that should be issued between the
    // multiplications.
    template <typename Meanwhile>
    __device__ void multiply_add(const SlabA& a, const SlabB& b, const Meanwhile& meanwhile) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const T* const rows = &a[first_row() + lane % 16][lane / 16 * kVector];
      const T* const columns = &b[first_column() + lane % 8 + lane / 16 * 8][lane / 8 % 2 * kVector];
      constexpr int kSteps = kDepth / kStep;
      constexpr int kPartsAtATime = kDepth / kSteps / kColumnFragments;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32 row_fragments[kRowFragments][4], column_fragments[kColumnFragments / 2][4];
#pragma unroll
        for (int i = 0; i < kRowFragments; ++i) load_matrices(row_fragments[i], rows + i * 16 * kPitch + step * kStep);
#pragma unroll
        for (int j = 0; j < kColumnFragments / 2; ++j) load_matrices(column_fragments[j], columns + j * 16 * kPitch + step * kStep);
#pragma unroll
        for (int j = 0; j < kColumnFragments; ++j) {
          const uint32(&pair)[4] = column_fragments[j / 2];
#pragma unroll
          for (int i = 0; i < kRowFragments; ++i) {
            multiply_add_matrices<T>(at[i][j], row_fragments[i], pair[j % 2 * 2], pair[j % 2 * 2 + 1]);
          }
#pragma unroll
          for (int part = 0; part < kPartsAtATime; ++part) meanwhile((step * kColumnFragments + j) * kPartsAtATime + part);
        }
      }
    }

    __device__ void multiply_add(const RowFragments& rows, const ColumnFragments& columns) {
#pragma unroll
      for (int i = 0; i < kRowFragments; ++i) {
#pragma unroll
        for (int step = 0; step < kColumnFragments; ++step) {
          // Columns go there and back, so that neighbouring instructions share an operand.
          const int j = i % 2 == 0 ? step : kColumnFragments - 1 - step;
          const uint32(&pair)[4] = columns[j / 2];
          multiply_add_matrices<T>(at[i][j], rows[i], pair[j % 2 * 2], pair[j % 2 * 2 + 1]);
        }
      }
    }

    // visit(row, column, sum) for every output of this thread.
    template <typename Visit>
    __device__ void for_each(const Visit& visit) const {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const int row = first_row() + lane / 4, column = first_column() + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kRowFragments; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnFragments; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) visit(row + i * 16 + e / 2 * 8, column + j * 8 + e % 2, at[i][j][e]);
        }
      }
    }

    // visit(n, sum) for every sum of this thread, the n-th.
    template <typename Visit>
    __device__ void for_each_of_thread(const Visit& visit) const {
#pragma unroll
      for (int n = 0; n < kRowFragments * kColumnFragments * 4; ++n) {
        visit(n, at[n / 4 / kColumnFragments][n / 4 % kColumnFragments][n % 4]);
      }
    }

  private:
    template <typename Visit>
    __device__ void each_total(Totals& totals, const Visit& visit) {
#pragma unroll
      for (int i = 0; i < kRowFragments; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnFragments; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) visit(at[i][j][e], totals.at[(i * kColumnFragments + j) * 4 + e][threadIdx.x]);
        }
      }
    }
  };
};

}  // namespace dnncore::gemm
