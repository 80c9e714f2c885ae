// The block tile for fp32 and fp64: which thread computes which outputs, and the product of two slabs in shared memory.
// kThreadRows x kThreadColumns threads hold kRowVectors x kColumnVectors squares of outputs each, a square being as
// many rows and columns as a vector of 16 bytes has elements. Squares of one thread lie a whole thread grid apart, so
// that a warp's 16-byte reads of a slab are contiguous. More outputs per thread mean fewer reads per multiplication and
// more registers.
//
//                  kThreadColumns squares    kThreadColumns squares
//                 +-----------------------+-----------------------+
//    kThreadRows  | t  .  .  .  .  .  .   | t  .  .  .  .  .  .   |     t: the squares of one thread,
//    squares      | .  .  .  .  .  .  .   | .  .  .  .  .  .  .   |     here with kRowVectors = kColumnVectors = 2
//                 +-----------------------+-----------------------+
//    kThreadRows  | t  .  .  .  .  .  .   | t  .  .  .  .  .  .   |
//    squares      | .  .  .  .  .  .  .   | .  .  .  .  .  .  .   |
//                 +-----------------------+-----------------------+
#pragma once

namespace dnncore::gemm {

template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T at[kSize];
};

// Element is the type of the slabs and of the sums; kSlabDepth is the extent of a slab along the reduction.
template <typename Element, int kThreadRows, int kThreadColumns, int kRowVectors, int kColumnVectors, int kSlabDepth>
struct Tile {
  using T = Element;  // of the slabs
  using C = Element;
  static constexpr int kVector = Vector<T>::kSize;
  static constexpr int kThreads = kThreadRows * kThreadColumns;
  static constexpr int kRowsPerThread = kRowVectors * kVector;
  static constexpr int kColumnsPerThread = kColumnVectors * kVector;
  static constexpr int kRows = kThreadRows * kRowsPerThread;
  static constexpr int kColumns = kThreadColumns * kColumnsPerThread;
  static constexpr int kDepth = kSlabDepth;
  // One vector of padding: the transposed stores into a slab then fall into different banks.
  static constexpr int kRowPitch = kRows + kVector;
  static constexpr int kColumnPitch = kColumns + kVector;
  // A slab holds one step of the reduction after the other.
  static constexpr bool kReductionFirst = true;
  // Sums are rounded to the nearest here and need no totals; see MatrixTile.
  static constexpr bool kHasTotals = false;
  struct Totals {};
  using SlabA = T[kDepth][kRowPitch];
  using SlabB = T[kDepth][kColumnPitch];
  // A warp covers 4 x 8 threads, or 2 x 16 in a tile with few rows.
  static constexpr int kWarpRows = kThreadRows < 4 ? 2 : 4;
  static constexpr int kWarpColumns = 32 / kWarpRows;
  static_assert(kThreadRows % kWarpRows == 0 && kThreadColumns % kWarpColumns == 0);

  // In a warp of 4 x 8 threads lane bits 4 and 0 give the row and bits 3 to 1 the column: neighbouring lanes share the
  // addresses of one operand, and lanes two apart those of the other, which lets the hardware join 128-bit reads of
  // half a warp.
  static __device__ int row_of(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    return warp / (kThreadColumns / kWarpColumns) * kWarpRows + lane / (2 * kWarpColumns) * 2 + lane % 2;
  }
  static __device__ int column_of(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    return warp % (kThreadColumns / kWarpColumns) * kWarpColumns + lane % (2 * kWarpColumns) / 2;
  }
  // Where in the tile a thread's i-th row, its j-th column and its n-th sum are, row by row.
  struct Positions {
    int thread_row;
    int thread_column;

    __device__ explicit Positions(int thread) : thread_row(row_of(thread)), thread_column(column_of(thread)) {}
    __device__ int nth_row(int i) const { return (i / kVector * kThreadRows + thread_row) * kVector + i % kVector; }
    __device__ int nth_column(int j) const { return (j / kVector * kThreadColumns + thread_column) * kVector + j % kVector; }
    __device__ int row(int n) const { return nth_row(n / kColumnsPerThread); }
    __device__ int column(int n) const { return nth_column(n % kColumnsPerThread); }
  };
  // Row (column) in the tile of this thread's i-th row (column).
  static __device__ int row(int i) { return Positions(static_cast<int>(threadIdx.x)).nth_row(i); }
  static __device__ int column(int i) { return Positions(static_cast<int>(threadIdx.x)).nth_column(i); }

  struct Accumulator {
    T at[kRowsPerThread][kColumnsPerThread] = {};

    // meanwhile(part) is called once for each of kDepth parts, for work that should be issued between the
    // multiplications.
    template <typename Meanwhile>
    __device__ void multiply_add(const SlabA& a, const SlabB& b, const Meanwhile& meanwhile) {
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        Vector<T> rows[kRowVectors], columns[kColumnVectors];
#pragma unroll
        for (int v = 0; v < kRowVectors; ++v) rows[v] = *reinterpret_cast<const Vector<T>*>(&a[k][row(v * kVector)]);
#pragma unroll
        for (int v = 0; v < kColumnVectors; ++v) columns[v] = *reinterpret_cast<const Vector<T>*>(&b[k][column(v * kVector)]);
        meanwhile(k);
        const auto multiply = [&](int i, int j) {
          at[i][j] += rows[i / kVector].at[i % kVector] * columns[j / kVector].at[j % kVector];
        };
        // In blocks of 2 x 2, there and back: neighbouring instructions share an operand, which is then not read again.
        // In row order up to a tenth of the instructions read three registers of one bank in sm_90a code, which cost
        // 8 % on an H200; in this order hardly any do.
#pragma unroll
        for (int i = 0; i < kRowsPerThread; i += 2) {
#pragma unroll
          for (int step = 0; step < kColumnsPerThread; step += 2) {
            const int j = i % 4 == 0 ? step : kColumnsPerThread - 2 - step;
            multiply(i, j);
            multiply(i, j + 1);
            multiply(i + 1, j + 1);
            multiply(i + 1, j);
          }
        }
      }
    }

    // visit(row, column, sum) for every output of this thread.
    template <typename Visit>
    __device__ void for_each(const Visit& visit) const {
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnsPerThread; ++j) visit(row(i), column(j), at[i][j]);
      }
    }

    // visit(n, sum) for every sum of this thread, the n-th.
    template <typename Visit>
    __device__ void for_each_of_thread(const Visit& visit) const {
#pragma unroll
      for (int n = 0; n < kRowsPerThread * kColumnsPerThread; ++n) visit(n, at[n / kColumnsPerThread][n % kColumnsPerThread]);
    }
  };
};

}  // namespace dnncore::gemm
