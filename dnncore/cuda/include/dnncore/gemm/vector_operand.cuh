// An operand of 16 or 8 bits that is read 16 bytes at a time: from global memory into a slab, and from there into
// fragments. The launcher found every 16 bytes along one index of the operand to be contiguous, aligned, and wholly
// inside or wholly outside (dnncore/cuda/gemm/vectors.py). A slab keeps the operand's order: where vectors follow the
// reduction, a line of vectors is a row or column of the tile; otherwise it is one step of the reduction, and fragments
// are transposed as they are read. Instead of padding, each line permutes its vectors, so that neither copies nor reads
// meet a bank twice:
//
//    line      vector at each place (64-byte lines; ldmatrix reads the same vector of eight lines at once)
//    0, 1      0  1  2  3      0  1  2  3
//    2, 3      1  0  3  2      1  0  3  2
//    4, 5      2  3  0  1      2  3  0  1
//    6, 7      3  2  1  0      3  2  1  0
#pragma once

#include "dnncore/gemm/loader.cuh"
#include "dnncore/gemm/matrix_tile.cuh"
#include "dnncore/gemm/tile.cuh"
#include "dnncore/ptx/async_copy.cuh"

namespace dnncore::gemm {

// Tile is a MatrixTile with kOuter rows or columns; Outer is Row or Column, Entry a Reduction, kWalk the index that
// vectors follow.
template <typename Tile, Walk kWalk, int kOuter, typename Outer, typename Entry, int kDigits>
class VectorOperand {
  using T = typename Tile::T;
  static constexpr bool kAlongReduction = kWalk == Walk::kReduction;
  static constexpr int kVector = Tile::kVector;
  static constexpr int kLineVectors = (kAlongReduction ? Tile::kDepth : kOuter) / kVector;
  static constexpr int kLines = kAlongReduction ? kOuter : Tile::kDepth;
  static constexpr int kLinesAtATime = Tile::kThreads / kLineVectors;
  static constexpr int kCopies = kLines / kLinesAtATime;
  static constexpr int kOuters = kAlongReduction ? kCopies : 1;
  static_assert(kLinesAtATime % 8 == 0 && kCopies * kLinesAtATime == kLines);
  static_assert(kLineVectors == 4 || kLineVectors % 8 == 0);
  static_assert(kAlongReduction || sizeof(T) == 2);  // single bytes cannot be transposed

public:
  using Slab = Vector<T>[kLines * kLineVectors];

  __device__ VectorOperand(const T* base, uint32 first_outer, const Params& params, const Phase& phase) : base_(base) {
    // The compiler would otherwise keep the parts of the base address apart and add them all for every vector.
    asm("" : "+l"(base_));
#pragma unroll
    for (int i = 0; i < kOuters; ++i) {
      const int outer = kAlongReduction ? line(i) : vector() * kVector;
      outer_[i] = Outer::template at<kAlongReduction ? 1 : kVector>(first_outer + static_cast<uint32>(outer), params, phase);
    }
  }

  // Begin to copy the slab whose first reduction index is first_k. Only its first `remaining` reduction indices exist;
  // the others become 0. What an index adds to the addresses is read from the table in the workspace, or worked out.
  template <bool kTabulated>
  __device__ void copy(uint32 first_k, int remaining, const Phase& phase, const Params& params, Slab& slab) const {
    Vector<T>* const first = &slab[place(line(0), vector())];
    Entry entry;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (i == 0 || !kAlongReduction) {
        const uint32 k = first_k + static_cast<uint32>(reduction_index(i));
        entry = kTabulated ? Entry::tabulated(k, phase, params) : Entry::template at<kDigits>(k, phase);
      }
      const Outer& outer = outer_[kAlongReduction ? i : 0];
      const bool inside = static_cast<int>(reduction_index(i) < remaining) & static_cast<int>(outer.inside(entry, params));
      copy_vector_async(first + i * (kLinesAtATime * kLineVectors), base_ + outer.offset_of(entry), inside);
    }
  }

  // This warp's fragments of one step of a slab, beginning at row or column first_outer. Two halves of 8 rows or
  // columns and two halves of 16 bytes of the reduction make four matrices; kReductionSlower says which halves come
  // first.
  template <bool kReductionSlower, int kCount>
  static __device__ void load(const Slab& slab, int first_outer, int step, uint32 (&fragments)[kCount][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int outer_half = kReductionSlower ? lane / 8 % 2 : lane / 16;
    const int reduction_half = kReductionSlower ? lane / 16 : lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kAlongReduction) {
        const int outer = first_outer + i * 16 + outer_half * 8 + lane % 8;
        load_matrices(fragments[i], &slab[place(outer, step * 2 + reduction_half)]);
      } else {
        const int k = step * Tile::kStep + reduction_half * 8 + lane % 8;
        load_transposed_matrices(fragments[i], &slab[place(k, first_outer / kVector + i * 2 + outer_half)]);
      }
    }
  }

private:
  const T* __restrict__ base_;
  Outer outer_[kOuters];

  // Where in a slab a line's vector lies. Any one vector of eight neighbouring lines occupies eight different banks of
  // 16 bytes, and so do eight neighbouring vectors of one line.
  static __device__ int place(int line, int vector) {
    const int turn = kLineVectors == 4 ? line / 2 % 4 : line % 8;
    return line * kLineVectors + (vector ^ turn);
  }
  // The place of this thread's copies.
  static __device__ int vector() { return static_cast<int>(threadIdx.x) % kLineVectors; }
  static __device__ int line(int i) { return static_cast<int>(threadIdx.x) / kLineVectors + i * kLinesAtATime; }
  static __device__ int reduction_index(int i) { return kAlongReduction ? vector() * kVector : line(i); }
};

}  // namespace dnncore::gemm
