// Softmax of one row, for softmax.cuh and cross_entropy.cuh: who works on a row together, and its maximum and its sum of
// exponentials, found in one pass or from values kept in registers.
#pragma once

#include "dnncore/common/reduce.cuh"

namespace dnncore {

// Teams: how a row's elements are shared out, and how partial results become one. A member takes elements first(), first() + step()
// and so on, and keeps up to kKept of them in registers.
struct ThreadPerRow {
  static constexpr int kKept = 32;  // _KEPT in softmax.py has them all
  static __device__ __forceinline__ int64 first_row() { return grid_index(); }
  static __device__ __forceinline__ int64 row_step() { return grid_size(); }
  static __device__ __forceinline__ int first() { return 0; }
  static __device__ __forceinline__ int step() { return 1; }
  template <typename Operation, typename C>
  static __device__ __forceinline__ C reduce(C value) {
    return value;
  }
};

struct WarpPerRow {
  static constexpr int kKept = 32;
  static __device__ __forceinline__ int64 first_row() { return grid_index() / kWarpSize; }
  static __device__ __forceinline__ int64 row_step() { return grid_size() / kWarpSize; }
  static __device__ __forceinline__ int first() { return threadIdx.x % kWarpSize; }
  static __device__ __forceinline__ int step() { return kWarpSize; }
  template <typename Operation, typename C>
  static __device__ __forceinline__ C reduce(C value) {
    return reduce_warp<Operation>(value);
  }
};

struct BlockPerRow {
  static constexpr int kKept = 16;
  static __device__ __forceinline__ int64 first_row() { return blockIdx.x; }
  static __device__ __forceinline__ int64 row_step() { return gridDim.x; }
  static __device__ __forceinline__ int first() { return threadIdx.x; }
  static __device__ __forceinline__ int step() { return blockDim.x; }
  template <typename Operation, typename C>
  static __device__ __forceinline__ C reduce(C value) {
    return reduce_block<Operation>(value);
  }
};

// Call visitor(k, i) for a member's k-th element, the row's i-th; i may be beyond the row, for some members of the team.
template <typename Team, typename Visitor>
__device__ __forceinline__ void visit_kept(int length, const Visitor& visitor) {
#pragma unroll
  for (int k = 0; k < Team::kKept; ++k) {
    if (k * Team::step() >= length) break;
    visitor(k, Team::first() + k * Team::step());
  }
}

// Call use(i, load(i)) for a member's elements of a row, several loads before the first use: a use that writes may not be overtaken
// by a load that follows it, and one load at a time leaves the memory idle.
constexpr int kBatch = 8;

template <typename Team, int kLoads = kBatch, typename Load, typename Use>
__device__ __forceinline__ void stream(int64 length, const Load& load, const Use& use) {
  using Loaded = decltype(load(int64(0)));
  for (int64 first = Team::first(); first < length; first += kLoads * Team::step()) {
    Loaded loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64 i = first + k * Team::step();
      loaded[k] = i < length ? load(i) : Loaded{};
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64 i = first + k * Team::step();
      if (i < length) use(i, loaded[k]);
    }
  }
}

// A member's elements of a row, one after the other: adding to a pointer takes fewer registers than 32 products of 64 bits, which
// the compiler would keep from row to row.
template <typename Team, typename T>
class Walk {
 public:
  __device__ __forceinline__ Walk(T* row, int64 stride) : place_(row + Team::first() * stride), step_(Team::step() * stride) {}
  __device__ __forceinline__ T* next() {
    T* place = place_;
    place_ += step_;
    return place;
  }

 private:
  T* place_;
  int64 step_;
};

template <typename Team, typename T, typename C>
__device__ __forceinline__ void load_kept(int length, const T* row, int64 stride, C beyond, C (&values)[Team::kKept]) {
  Walk<Team, const T> walk(row, stride);
  visit_kept<Team>(length, [&](int k, int i) {
    const T* place = walk.next();
    values[k] = i < length ? widen(*place) : beyond;
  });
}

// The largest of a row's kept values; those beyond the row are minus infinity.
template <typename Team, typename C>
__device__ __forceinline__ C largest_kept(int length, const C (&values)[Team::kKept]) {
  C largest = Maximum::identity<C>();
  visit_kept<Team>(length, [&](int k, int) { largest = Maximum{}(largest, values[k]); });
  return Team::template reduce<Maximum>(largest);
}

// Largest value of a row, and the sum of exponentials once it is taken off. Where the largest is infinite, as in a row of nothing
// but minus infinity, the sum is NaN, and with it the softmax.
template <typename C>
struct Normaliser {
  C shift;
  C total;
};

// The same of nothing so far, and with one value more; NaN goes into the sum alone.
template <typename C>
__device__ __forceinline__ Normaliser<C> empty_normaliser() {
  return {Maximum::identity<C>(), C(0)};
}

template <typename C>
__device__ __forceinline__ void include(Normaliser<C>& row, C value) {
  const C distance = value == row.shift ? C(0) : value - row.shift;  // two infinities have none
  const C smaller = exp(-fabs(distance));
  row.total = value > row.shift ? row.total * smaller + C(1) : row.total + smaller;
  row.shift = Maximum{}(row.shift, value);
}

// That of the row from those of the team's members.
template <typename Team, typename C>
__device__ __forceinline__ Normaliser<C> reduce(const Normaliser<C>& part) {
  const C shift = Team::template reduce<Maximum>(part.shift);
  const C total = part.shift == shift ? part.total : part.total * exp(part.shift - shift);
  return {shift, Team::template reduce<Sum>(total) + (shift - shift)};
}

// value_at(i) is the row's i-th value, which is read once.
template <typename Team, typename C, int kLoads = kBatch, typename ValueAt>
__device__ __forceinline__ Normaliser<C> normaliser_of(int64 length, const ValueAt& value_at) {
  Normaliser<C> part = empty_normaliser<C>();
  stream<Team, kLoads>(length, value_at, [&](int64, C value) { include(part, value); });
  return reduce<Team>(part);
}

}  // namespace dnncore
