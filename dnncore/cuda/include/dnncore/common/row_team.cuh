// A row in the registers of a team, for kernels whose rows lie one behind the other (normalization/rows.cuh, softmax_rows.cuh). A team is 32, 64 or 128
// neighbouring threads of a block, as few as the row needs if each takes kTeamElements of it; all of its loads are under way before the first is looked
// at. It has one row and no next one: while it stores, the loads of the block that takes its place are under way.
//
//    row 0   [pack][pack][pack][pack][pack][pack] ...     team 0
//    lane      0     1     2   ..  31    0     1  ...
//    row 1   [pack][pack][pack][pack][pack][pack] ...     team 1
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/common/reduce.cuh"
#include "dnncore/ptx/forget.cuh"

namespace dnncore {

constexpr int kTeamThreads = 128;  // of a block; THREADS in dnncore/cuda/row_team.py
constexpr int kTeamElements = 32;  // of a row, that a thread has at most; _ELEMENTS there

// What the warps of a team tell one another in one reduction: no two share one, so that each takes one barrier.
template <typename C>
using OfWarps = C[kTeamThreads / kWarpSize];

template <typename T>
class TeamRow {
 public:
  using C = Compute<T>;
  static constexpr int kWidth = 16 / sizeof(T), kPacks = kTeamElements / kWidth;
  using Elements = Vector<T, kWidth>;

  // Of `rows` rows, each of them `packs` packs. A team beyond the last takes part in the barriers only.
  __device__ __forceinline__ TeamRow(int32 rows, int32 packs, int32 lanes)
      : row_(static_cast<int64>(blockIdx.x) * (kTeamThreads / lanes) + threadIdx.x / lanes),
        lane_(threadIdx.x % lanes),
        lanes_(lanes),
        packs_(row_ < rows ? packs : 0),
        start_(row_ * packs) {}

  __device__ __forceinline__ int64 row() const { return row_; }
  // Whether this thread is the one that writes what a row has once.
  __device__ __forceinline__ bool is_first() const { return lane_ == 0 && packs_ > 0; }
  // The thread's k-th pack: whether there is one, its place in the row, and among all rows.
  __device__ __forceinline__ bool has(int k) const { return at(k) < packs_; }
  __device__ __forceinline__ int32 at(int k) const { return lane_ + k * lanes_; }
  __device__ __forceinline__ int64 place(int k) const { return start_ + at(k); }

  __device__ __forceinline__ void load(const void* from) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) loaded_[k].load_if(has(k), static_cast<const Elements*>(from)[place(k)].at);
  }

  // Call visitor(k, values) for each pack there is.
  template <typename Visitor>
  __device__ __forceinline__ void visit(const Visitor& visitor) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!has(k)) continue;
      if constexpr (std::is_same_v<T, bfloat16>) forget_widened(loaded_[k].word);  // the others are not remembered anyway
      C values[kWidth];
      loaded_[k].widen_into(values);
      visitor(k, values);
    }
  }

  // The team's result, with the same bits in each of its threads.
  template <typename Operation>
  __device__ __forceinline__ C reduce(C value, OfWarps<C>& of_warps) const {
    value = reduce_warp<Operation>(value);
    if (lanes_ == kWarpSize) return value;
    const int warp = threadIdx.x / kWarpSize, warps = lanes_ / kWarpSize, first = warp & -warps;
    if (threadIdx.x % kWarpSize == 0) of_warps[warp] = value;
    __syncthreads();
    value = of_warps[first];
    for (int other = first + 1; other < first + warps; ++other) value = Operation{}(value, of_warps[other]);
    return value;
  }

  // y = values + beta y for the k-th pack.
  __device__ __forceinline__ void store(void* to, int k, C (&values)[kWidth], C beta) const {
    Elements* target = static_cast<Elements*>(to) + place(k);
    if (beta != C(0)) {
      const Elements old = *target;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += beta * widen(old.at[i]);
    }
    Elements result;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result.at[i] = narrow<T>(values[i]);
    *target = result;
  }

 private:
  int64 row_;
  int32 lane_, lanes_, packs_;
  int64 start_;
  Loaded<T, kWidth> loaded_[kPacks];
};

}  // namespace dnncore
