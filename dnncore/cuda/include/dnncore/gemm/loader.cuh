// From global memory into a slab of shared memory: one operand, one slab of the reduction at a time, gathered and
// transposed element by element. An element's address is the sum of a part that depends on its row or column (its
// "outer" index), which each thread computes once, and a part that depends on the reduction index, which the block
// keeps in a small table in shared memory; the inner loop only adds the two. Elements of 4 bytes or more are copied
// asynchronously and occupy no registers; an element of 16 or 8 bits waits in a register while the slab before it is
// multiplied.
//
//                 Walk::kOuter                     Walk::kReduction
//              k ->                             k ->
//    outer     t0   .    .    .       outer     t0   t1   t2   t3      neighbouring threads follow the index along
//      |       t1   .    .    .         |       t4   t5   t6   t7      which the operand is denser in memory
//      v       t2   .    .    .         v       t8   t9   ...
#pragma once

#include "dnncore/gemm/params.cuh"
#include "dnncore/gemm/tile.cuh"
#include "dnncore/ptx/async_copy.cuh"

namespace dnncore::gemm {

// Which index neighbouring threads follow: the one along which the operand is denser in memory.
enum class Walk { kOuter, kReduction };

// Spatial coordinates in B, kept only by operations that pad.
template <int kCoordinates>
struct Coordinates {
  int32 at[kCoordinates];

  __device__ void start(const Phase& phase) {
#pragma unroll
    for (int i = 0; i < kCoordinates; ++i) at[i] = phase.first[i];
  }
  __device__ void advance(const Digit& digit, int32 value) {
#pragma unroll
    for (int i = 0; i < kCoordinates; ++i) at[i] += value * digit.step[i];
  }
  // Whether the sum of both lies inside B. One comparison covers both ends: a negative coordinate is a large unsigned
  // one.
  __device__ bool inside(const Coordinates& other, const Params& params) const {
    bool result = true;
#pragma unroll
    for (int i = 0; i < kCoordinates; ++i) {
      result &= static_cast<uint32>(at[i] + other.at[i]) < static_cast<uint32>(params.bounds[i]);
    }
    return result;
  }
};

template <>
struct Coordinates<0> {
  __device__ void start(const Phase&) {}
  __device__ void advance(const Digit&, int32) {}
  __device__ bool inside(const Coordinates&, const Params&) const { return true; }
};

// What a reduction index adds to the addresses of both operands; in the commonest case 16 bytes, which are one read.
template <typename Index, int kCoordinates>
struct alignas(2 * sizeof(Index)) Reduction {
  Index a_offset;
  Index b_offset;
  Coordinates<kCoordinates> coordinates;

  template <int kDigits>
  static __device__ Reduction at(uint32 k, const Phase& phase) {
    Reduction reduction = {};
    for_each_digit<kDigits>(k, phase.reduction, [&](const Digit& digit, int32 value) {
      reduction.a_offset += static_cast<Index>(value) * static_cast<Index>(digit.other_stride);
      reduction.b_offset += static_cast<Index>(value) * static_cast<Index>(digit.b_stride);
      reduction.coordinates.advance(digit, value);
    });
    return reduction;
  }

  // The same from the table in the workspace. Past the last index it is zero, which keeps vectors aligned and stays
  // unused.
  static __device__ Reduction tabulated(uint32 k, const Phase& phase, const Params& params) {
    return k < phase.reduction_length ? static_cast<const Reduction*>(params.table)[phase.first_entry + k] : Reduction{};
  }
};

// A row of A, which is just an offset.
template <typename Index>
struct Row {
  Index offset;

  // The first of kNeighbours rows that are read at once. Rows past the last one repeat it, and their results are not
  // stored.
  template <int kNeighbours = 1>
  static __device__ Row at(uint32 row, const Params& params, const Phase&) {
    return {static_cast<Index>(min(row, params.rows - kNeighbours)) * static_cast<Index>(params.a_row_stride)};
  }
  template <typename Entry>
  __device__ bool inside(const Entry&, const Params&) const {
    return true;
  }
  template <typename Entry>
  __device__ Index offset_of(const Entry& reduction) const {
    return offset + reduction.a_offset;
  }
};

// A column of B.
template <typename Index, int kDigits, int kCoordinates>
struct Column {
  Index offset;
  Coordinates<kCoordinates> coordinates;

  // The first of kNeighbours columns that are read at once. Columns past the last one repeat it, and their results are
  // not stored.
  template <int kNeighbours = 1>
  static __device__ Column at(uint32 number, const Params&, const Phase& phase) {
    Column column = {};
    column.coordinates.start(phase);
    for_each_digit<kDigits>(min(number, phase.columns - kNeighbours), phase.column, [&](const Digit& digit, int32 value) {
      column.offset += static_cast<Index>(value) * static_cast<Index>(digit.b_stride);
      column.coordinates.advance(digit, value);
    });
    return column;
  }
  template <typename Entry>
  __device__ bool inside(const Entry& reduction, const Params& params) const {
    return coordinates.inside(reduction.coordinates, params);
  }
  template <typename Entry>
  __device__ Index offset_of(const Entry& reduction) const {
    return offset + reduction.b_offset;
  }
};

// Slab is the Tile's type for this operand, of which the tile has kOuter rows or columns; Outer is Row or Column.
template <typename Tile, typename Slab, Walk kWalk, int kOuter, typename Outer>
class Loader {
  using T = typename Tile::T;
  static constexpr int kDepth = Tile::kDepth;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr bool kAsynchronous = sizeof(T) >= 4;
  // Neighbours in the reduction that a thread copies one after the other. For single bytes they are as many as a
  // register holds, so that a thread has few rows or columns.
  static constexpr int kInTurn = kWalk == Walk::kReduction && sizeof(T) == 1 ? 4 : 1;
  static constexpr int kLanes = kDepth / kInTurn;
  static constexpr int kCopies = kOuter * kDepth / kThreads;
  // The number of rows or columns of which a thread copies elements.
  static constexpr int kOuters = kWalk != Walk::kOuter ? kCopies / kInTurn : kOuter > kThreads ? kOuter / kThreads : 1;
  static_assert(kThreads % kLanes == 0 && (kThreads % kOuter == 0 || kOuter % kThreads == 0));
  static_assert(kCopies >= kInTurn && kCopies * kThreads == kOuter * kDepth);
  static_assert(kAsynchronous || kOuters == 1 || kWalk != Walk::kOuter);

  // What is held of one row or column is stored together.
  static constexpr int kHeldAtMost = kWalk == Walk::kReduction ? kInTurn : 16 / sizeof(T);
  static constexpr int kRun = kAsynchronous ? 1 : kCopies > kHeldAtMost ? kHeldAtMost : kCopies;
  struct alignas(kRun * sizeof(T)) Run {
    T at[kRun];
  };

  const T* __restrict__ base_;
  Outer outer_[kOuters];
  Run held_[kAsynchronous ? 1 : kCopies / kRun];  // between `copy` and `arrive`

  // Which of this thread's rows or columns its i-th copy belongs to, and where in the slab the copy goes.
  static constexpr __device__ int outer_of(int i) { return kWalk != Walk::kOuter ? i / kInTurn : i % kOuters; }
  static __device__ int outer_index(int i) {  // of the i-th row or column
    const int thread = static_cast<int>(threadIdx.x);
    return kWalk != Walk::kOuter ? thread / kLanes + i * (kThreads / kLanes) : (thread + i * kThreads) % kOuter;
  }
  static __device__ int reduction_index(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    if (kWalk != Walk::kOuter) return thread % kLanes * kInTurn + i % kInTurn;
    return kAsynchronous ? (thread + i * kThreads) / kOuter : thread / kOuter * kCopies + i;
  }
  static __device__ T* place(Slab& slab, int i) {
    const int outer = outer_index(outer_of(i));
    return Tile::kReductionFirst ? &slab[reduction_index(i)][outer] : &slab[outer][reduction_index(i)];
  }

public:
  __device__ Loader(const T* base, uint32 first_outer, const Params& params, const Phase& phase) : base_(base) {
    // The compiler would otherwise keep the parts of the base address apart and add them all for every element.
    asm("" : "+l"(base_));
#pragma unroll
    for (int i = 0; i < kOuters; ++i) {
      outer_[i] = Outer::at(first_outer + static_cast<uint32>(outer_index(i)), params, phase);
    }
  }

  // Begin to copy one of the kDepth parts of a slab. Only its first `remaining` reduction indices exist; the others
  // become 0.
  template <typename Entry>
  __device__ void copy(int part, const Entry* table, int remaining, const Params& params, Slab& slab) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (i * kDepth / kCopies != part) continue;
      const int k = reduction_index(i);
      const Entry entry = table[k];
      const Outer& outer = outer_[outer_of(i)];
      // Both conditions are evaluated: a short circuit would put a branch between the multiplications.
      const bool inside = static_cast<int>(k < remaining) & static_cast<int>(outer.inside(entry, params));
      const T* const source = base_ + outer.offset_of(entry);
      if constexpr (kAsynchronous) {
        copy_async(place(slab, i), source, inside);
      } else {
        held_[i / kRun].at[i % kRun] = inside ? *source : T{};
      }
    }
  }

  // Store what `copy` has read of a slab, once all its parts were begun; asynchronous copies are waited for instead.
  __device__ void arrive(Slab& slab) const {
    if constexpr (!kAsynchronous) {
#pragma unroll
      for (int i = 0; i < kCopies; i += kRun) *reinterpret_cast<Run*>(place(slab, i)) = held_[i / kRun];
    }
  }
};

}  // namespace dnncore::gemm
