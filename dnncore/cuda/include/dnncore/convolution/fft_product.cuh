// Products of complex matrices, one per frequency and group: C[row][column] = sum over k of
// A[k][column] * conj(B[k][row]). All three are [plane][..][fastest], a plane being a frequency and group, so that
// slabs of A and B go into shared memory as they are, 16 bytes at a time, round a ring of kStages buffers; a slab costs
// one barrier. A block computes one tile of C for one plane, its sums in registers and added in the order of k.
//
//                                     kColumns
//                                +---------------+
//     B[k][row]                  |    slab a     |  kSlab      A[k][column]
//     +----------+  kSlab        +---------------+
//     |  slab b  |               +---------------+             ring: [ multiplied ][ arriving ] ... [ arriving ]
//     +----------+        kRows  |   tile of C   |
//        kRows                   |               |             a warp is 4 x 8 threads
//                                +---------------+
#pragma once

#include "dnncore/convolution/fft.cuh"
#include "dnncore/ptx/async_copy.cuh"

namespace dnncore::fft {

// Mirrored by PRODUCT_PARAMS in dnncore/cuda/convolution/fft_kernels.py.
struct ProductParams {
  const void* a;
  const void* b;
  void* c;
  int32 rows;
  int32 row_pitch;     // of B; a multiple of 16 bytes, as is the next
  int32 column_pitch;  // of A and C
  int32 depth;         // products per sum
  int32 row_tiles;
  int32 column_tiles;
  int32 conjugate;     // conj(A) * B instead
  int32 accumulate;    // add to what C holds
};

// A warp is 4 x 8 threads, a block kWarpRows x kWarpColumns warps, and a thread has kThreadRows x kThreadColumns sums.
template <typename C, int kWarpRows, int kWarpColumns, int kThreadRows, int kThreadColumns>
struct Product {
  static constexpr int kThreads = 32 * kWarpRows * kWarpColumns;
  static constexpr int kRows = 4 * kWarpRows * kThreadRows;
  static constexpr int kColumns = 8 * kWarpColumns * kThreadColumns;
  static constexpr int kSlab = 8;
  static constexpr int kStages = sizeof(C) == sizeof(float) ? 4 : 3;
  static constexpr int kVector = 16 / sizeof(Complex<C>);

  struct alignas(16) Vector {
    Complex<C> at[kVector];
  };

  struct Shared {
    alignas(16) Complex<C> a[kStages][kSlab][kColumns];
    alignas(16) Complex<C> b[kStages][kSlab][kRows];
  };

  // Lane bits 4 and 0 give the row, bits 3 to 1 the column, as in gemm/tile.cuh: the hardware then joins the reads of
  // half a warp.
  static __device__ int thread_row() {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    return warp / kWarpColumns * 4 + lane / 16 * 2 + lane % 2;
  }
  static __device__ int thread_column() {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    return warp % kWarpColumns * 8 + lane % 16 / 2;
  }
  // Row (column) in the tile of this thread's i-th row (column).
  static __device__ int row(int i) { return (i / kVector * 4 * kWarpRows + thread_row()) * kVector + i % kVector; }
  static __device__ int column(int i) { return (i / kVector * 8 * kWarpColumns + thread_column()) * kVector + i % kVector; }

  // Copies an operand into shared memory, kSlab rows at a time; past its edges it copies zeros.
  template <int kWidth>
  struct Loader {
    static constexpr int kVectors = kWidth / kVector;
    static constexpr int kRowsAtOnce = kThreads / kVectors;
    static constexpr int kCopies = kSlab < kRowsAtOnce ? 1 : kSlab / kRowsAtOnce;
    static_assert(kThreads % kVectors == 0 && (kSlab < kRowsAtOnce || kSlab % kRowsAtOnce == 0));

    const Complex<C>* next;
    int rows_left;  // from this thread's first row on
    int pitch;
    bool works;

    __device__ Loader(const Complex<C>* operand, int first_column, int depth, int operand_pitch) {
      const int column = first_column + this_column();
      next = operand + (static_cast<int64>(this_row()) * operand_pitch + column);
      works = column < operand_pitch;
      rows_left = depth - this_row();
      pitch = operand_pitch;
    }
    static __device__ int this_row() { return static_cast<int>(threadIdx.x) / kVectors; }
    static __device__ int this_column() { return static_cast<int>(threadIdx.x) % kVectors * kVector; }

    __device__ __forceinline__ void copy(Complex<C> (&to)[kSlab][kWidth]) {
      if (kSlab < kRowsAtOnce && this_row() >= kSlab) return;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy_async(
            reinterpret_cast<Vector*>(&to[this_row() + i * kRowsAtOnce][this_column()]),
            reinterpret_cast<const Vector*>(next + i * kRowsAtOnce * static_cast<int64>(pitch)),
            works && i * kRowsAtOnce < rows_left);
      }
      next += kSlab * static_cast<int64>(pitch);
      rows_left -= kSlab;
    }
  };

  struct Accumulator {
    Complex<C> at[kThreadRows][kThreadColumns] = {};

    __device__ __forceinline__ void multiply_add(const Complex<C> (&a)[kSlab][kColumns], const Complex<C> (&b)[kSlab][kRows]) {
#pragma unroll
      for (int k = 0; k < kSlab; ++k) {
        Vector rows[kThreadRows / kVector], columns[kThreadColumns / kVector];
#pragma unroll
        for (int v = 0; v < kThreadRows / kVector; ++v) rows[v] = *reinterpret_cast<const Vector*>(&b[k][row(v * kVector)]);
#pragma unroll
        for (int v = 0; v < kThreadColumns / kVector; ++v) {
          columns[v] = *reinterpret_cast<const Vector*>(&a[k][column(v * kVector)]);
        }
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i) {
          const Complex<C> y = rows[i / kVector].at[i % kVector];
#pragma unroll
          for (int j = 0; j < kThreadColumns; ++j) {
            const Complex<C> x = columns[j / kVector].at[j % kVector];
            Complex<C>& sum = at[i][j];
            sum.re += x.re * y.re;
            sum.im += x.im * y.re;
            sum.re += x.im * y.im;
            sum.im -= x.re * y.im;
          }
        }
      }
    }
  };

  static __device__ void run(const ProductParams& params, Shared& shared) {
    // Row tiles are fastest: blocks that run at the same time then share columns of A, the larger operand, in the L2
    // cache.
    const int tile = static_cast<int>(blockIdx.x) / params.row_tiles;
    const int first_row = (static_cast<int>(blockIdx.x) - tile * params.row_tiles) * kRows;
    const int plane = tile / params.column_tiles;
    const int first_column = (tile - plane * params.column_tiles) * kColumns;
    const auto* const a = static_cast<const Complex<C>*>(params.a) + static_cast<int64>(plane) * params.depth * params.column_pitch;
    const auto* const b = static_cast<const Complex<C>*>(params.b) + static_cast<int64>(plane) * params.depth * params.row_pitch;

    Loader<kColumns> load_a(a, first_column, params.depth, params.column_pitch);
    Loader<kRows> load_b(b, first_row, params.depth, params.row_pitch);
    const auto copy_slab = [&](int stage) {
      load_a.copy(shared.a[stage]);
      load_b.copy(shared.b[stage]);
      commit_copies();
    };

    Accumulator accumulator;
    const int slabs = (params.depth + kSlab - 1) / kSlab;
#pragma unroll
    for (int slab = 0; slab < kStages - 1; ++slab) copy_slab(slab);
    int stage = 0;
    for (int slab = 0; slab < slabs; ++slab) {
      wait_for_copies<kStages - 2>();
      // After this barrier every thread can read this slab, and none still reads what is overwritten below.
      __syncthreads();
      copy_slab(stage == 0 ? kStages - 1 : stage - 1);
      accumulator.multiply_add(shared.a[stage], shared.b[stage]);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    write(accumulator, plane, first_row, first_column, params);
  }

  static __device__ void write(
      const Accumulator& accumulator, int plane, int first_row, int first_column, const ProductParams& params) {
    const C sign = params.conjugate ? C(-1) : C(1);
    Complex<C>* const c = static_cast<Complex<C>*>(params.c) + static_cast<int64>(plane) * params.rows * params.column_pitch;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const int y = first_row + row(i);
      if (y >= params.rows) continue;
#pragma unroll
      for (int j = 0; j < kThreadColumns; j += kVector) {
        const int x = first_column + column(j);
        if (x >= params.column_pitch) continue;
        Vector* const to = reinterpret_cast<Vector*>(c + (static_cast<int64>(y) * params.column_pitch + x));
        Vector sums;
#pragma unroll
        for (int e = 0; e < kVector; ++e) sums.at[e] = {accumulator.at[i][j + e].re, sign * accumulator.at[i][j + e].im};
        if (params.accumulate) {
          const Vector before = *to;
#pragma unroll
          for (int e = 0; e < kVector; ++e) sums.at[e] = before.at[e] + sums.at[e];
        }
        *to = sums;
      }
    }
  }
};

template <typename C, int kWarpRows, int kWarpColumns, int kThreadRows, int kThreadColumns>
__device__ __forceinline__ void product(const ProductParams& params) {
  using Variant = Product<C, kWarpRows, kWarpColumns, kThreadRows, kThreadColumns>;
  __shared__ typename Variant::Shared shared;
  Variant::run(params, shared);
}

}  // namespace dnncore::fft
