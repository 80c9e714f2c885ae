// The block tile: which thread computes which outputs, and the product of two slabs in shared memory.
#pragma once

namespace dnncore::gemm {

template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T at[kSize];
};

// kThreadRows x kThreadColumns threads, each with kVectors x kVectors blocks of (16 bytes) x (16 bytes) of outputs. A thread's
// blocks lie a whole thread grid apart, so that a warp's 16-byte reads of a slab are contiguous.
template <typename Element, int kThreadRows, int kThreadColumns, int kVectors, int kSlabDepth>
struct Tile {
  using T = Element;
  static constexpr int kVector = Vector<T>::kSize;
  static constexpr int kThreads = kThreadRows * kThreadColumns;
  static constexpr int kPerThread = kVectors * kVector;
  static constexpr int kRows = kThreadRows * kPerThread;
  static constexpr int kColumns = kThreadColumns * kPerThread;
  static constexpr int kDepth = kSlabDepth;
  // One vector of padding: a slab's transposed stores then fall into different banks.
  static constexpr int kRowPitch = kRows + kVector;
  static constexpr int kColumnPitch = kColumns + kVector;
  static_assert(kThreadRows % 4 == 0 && kThreadColumns % 8 == 0, "a warp is 4 x 8 threads");

  // A warp covers 4 x 8 threads. Lane bits 4 and 0 give the row, bits 3 to 1 the column: neighbouring lanes share addresses in
  // one operand and lanes two apart in the other, which lets the hardware join 128-bit reads of half a warp.
  static __device__ int thread_row() {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    return warp / (kThreadColumns / 8) * 4 + lane / 16 * 2 + lane % 2;
  }
  static __device__ int thread_column() {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    return warp % (kThreadColumns / 8) * 8 + lane % 16 / 2;
  }
  // Row (column) in the tile of a thread's i-th row (column).
  static __device__ int row(int i) { return (i / kVector * kThreadRows + thread_row()) * kVector + i % kVector; }
  static __device__ int column(int i) { return (i / kVector * kThreadColumns + thread_column()) * kVector + i % kVector; }

  struct Accumulator {
    T at[kPerThread][kPerThread] = {};

    __device__ void multiply_add(const T (&a)[kDepth][kRowPitch], const T (&b)[kDepth][kColumnPitch]) {
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        Vector<T> rows[kVectors], columns[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          rows[v] = *reinterpret_cast<const Vector<T>*>(&a[k][row(v * kVector)]);
          columns[v] = *reinterpret_cast<const Vector<T>*>(&b[k][column(v * kVector)]);
        }
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
          for (int j = 0; j < kPerThread; ++j) {
            at[i][j] += rows[i / kVector].at[i % kVector] * columns[j / kVector].at[j % kVector];
          }
        }
      }
    }
  };
};

}  // namespace dnncore::gemm
