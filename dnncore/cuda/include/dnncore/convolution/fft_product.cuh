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

#include "dnncore/convolution/fft_slabs.cuh"

namespace dnncore::fft {

// A warp is 4 x 8 threads, a block kWarpRows x kWarpColumns warps, and a thread has kThreadRows x kThreadColumns sums.
template <typename C, int kWarpRows, int kWarpColumns, int kThreadRows, int kThreadColumns>
struct Product {
  using Number = Complex<C>;
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

  using LoadA = SlabLoader<Product, kColumns, kColumns>;
  using LoadB = SlabLoader<Product, kRows, kRows>;

  static __device__ __forceinline__ void copy_vector(Number* to, const Number* from, bool inside) {
    copy_async(reinterpret_cast<Vector*>(to), reinterpret_cast<const Vector*>(from), inside);
  }

  struct Sums {
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

  static __device__ void write(
      const Sums& sums, int plane, int first_row, int first_column, const ProductParams& params) {
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
        Vector written;
#pragma unroll
        for (int e = 0; e < kVector; ++e) written.at[e] = {sums.at[i][j + e].re, sign * sums.at[i][j + e].im};
        if (params.accumulate) {
          const Vector before = *to;
#pragma unroll
          for (int e = 0; e < kVector; ++e) written.at[e] = before.at[e] + written.at[e];
        }
        *to = written;
      }
    }
  }
};

template <typename C, int kWarpRows, int kWarpColumns, int kThreadRows, int kThreadColumns>
__device__ __forceinline__ void product(const ProductParams& params) {
  using Variant = Product<C, kWarpRows, kWarpColumns, kThreadRows, kThreadColumns>;
  __shared__ typename Variant::Shared shared;
  multiply_slabs<Variant>(params, shared);
}

}  // namespace dnncore::fft
