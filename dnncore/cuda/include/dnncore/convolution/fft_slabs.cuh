// What products of spectra have in common, whoever multiplies: a block computes one tile of C for one plane, and slabs of both
// operands, kSlab of k each, go into shared memory as they are, 16 bytes at a time, round a ring of kStages. A slab costs one
// barrier.
//
//     ring: [ multiplied ][ arriving ] ... [ arriving ]
//
// A Variant has the types Number, Shared (with a and b, a slab for each stage) and Sums (with multiply_add of two slabs), LoadA and
// LoadB, which are SlabLoaders, the extents kRows, kColumns, kSlab and kStages, copy_vector and write.
#pragma once

#include "dnncore/convolution/fft.cuh"
#include "dnncore/ptx/async_copy.cuh"

namespace dnncore::fft {

// Mirrored by PRODUCT_PARAMS in dnncore/cuda/convolution/fft_products.py.
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

// Copies slab after slab of an operand, kWidth numbers of each k, into shared memory; past its edges it copies zeros.
template <typename Variant, int kWidth, int kPitch>
struct SlabLoader {
  using Number = typename Variant::Number;
  static constexpr int kSlab = Variant::kSlab, kVector = 16 / sizeof(Number);
  static constexpr int kVectors = kWidth / kVector;
  static constexpr int kRowsAtOnce = Variant::kThreads / kVectors;
  static constexpr int kCopies = kSlab < kRowsAtOnce ? 1 : kSlab / kRowsAtOnce;
  static_assert(Variant::kThreads % kVectors == 0 && (kSlab < kRowsAtOnce || kSlab % kRowsAtOnce == 0));

  const Number* next;
  int rows_left;  // from this thread's first one on
  int pitch;
  bool works;

  __device__ SlabLoader(const Number* operand, int first_column, int depth, int operand_pitch) {
    const int column = first_column + this_column();
    next = operand + (static_cast<int64>(this_row()) * operand_pitch + column);
    works = column < operand_pitch;
    rows_left = depth - this_row();
    pitch = operand_pitch;
  }
  static __device__ int this_row() { return static_cast<int>(threadIdx.x) / kVectors; }
  static __device__ int this_column() { return static_cast<int>(threadIdx.x) % kVectors * kVector; }

  __device__ __forceinline__ void copy(Number (&to)[kSlab][kPitch]) {
    if (kSlab < kRowsAtOnce && this_row() >= kSlab) return;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      Variant::copy_vector(
          &to[this_row() + i * kRowsAtOnce][this_column()], next + i * kRowsAtOnce * static_cast<int64>(pitch),
          works && i * kRowsAtOnce < rows_left);
    }
    next += kSlab * static_cast<int64>(pitch);
    rows_left -= kSlab;
  }
};

template <typename Variant>
__device__ __forceinline__ void multiply_slabs(const ProductParams& params, typename Variant::Shared& shared) {
  using Number = typename Variant::Number;
  constexpr int kStages = Variant::kStages, kSlab = Variant::kSlab;
  // Row tiles are fastest: blocks that run at the same time then share columns of A, the larger operand, in the L2
  // cache.
  const int tile = static_cast<int>(blockIdx.x) / params.row_tiles;
  const int first_row = (static_cast<int>(blockIdx.x) - tile * params.row_tiles) * Variant::kRows;
  const int plane = tile / params.column_tiles;
  const int first_column = (tile - plane * params.column_tiles) * Variant::kColumns;
  const auto* const a = static_cast<const Number*>(params.a) + static_cast<int64>(plane) * params.depth * params.column_pitch;
  const auto* const b = static_cast<const Number*>(params.b) + static_cast<int64>(plane) * params.depth * params.row_pitch;

  typename Variant::LoadA load_a(a, first_column, params.depth, params.column_pitch);
  typename Variant::LoadB load_b(b, first_row, params.depth, params.row_pitch);
  const auto copy_slab = [&](int stage) {
    load_a.copy(shared.a[stage]);
    load_b.copy(shared.b[stage]);
    commit_copies();
  };

  typename Variant::Sums sums;
  const int slabs = (params.depth + kSlab - 1) / kSlab;
#pragma unroll
  for (int slab = 0; slab < kStages - 1; ++slab) copy_slab(slab);
  int stage = 0;
  for (int slab = 0; slab < slabs; ++slab) {
    wait_for_copies<kStages - 2>();
    // After this barrier every thread can read this slab, and none still reads what is overwritten below.
    __syncthreads();
    copy_slab(stage == 0 ? kStages - 1 : stage - 1);
    sums.multiply_add(shared.a[stage], shared.b[stage]);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  Variant::write(sums, plane, first_row, first_column, params);
}

}  // namespace dnncore::fft
