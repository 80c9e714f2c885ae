// Softmax of one row, for softmax.cuh and cross_entropy.cuh: which team works on a row (a thread, a warp or a block),
// which elements belong to which member, how they are read and written, and a row's maximum and sum of exponentials. A
// member keeps at most kKept elements of a span in registers; a long row is a sequence of spans.
//
//    aligned neighbours: whole packs          0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15 | 16 17 18 19 | ...
//    member of a team of 4                       0         1          2            3             0
//
//    else: elements members() apart           0  1  2  3  4  5  6  7  8  9 ...
//    member of a team of 4                    0  1  2  3  0  1  2  3  0  1 ...
#pragma once

#include "dnncore/common/pack.cuh"
#include "dnncore/common/reduce.cuh"

namespace dnncore {

// Teams: how the elements of a row are shared out, and how partial results become one.
struct ThreadPerRow {
  static __device__ __forceinline__ int64 first_row() { return grid_index(); }
  static __device__ __forceinline__ int64 row_step() { return grid_size(); }
  static __device__ __forceinline__ int member() { return 0; }
  static __device__ __forceinline__ int members() { return 1; }
  template <typename Operation, typename C>
  static __device__ __forceinline__ C reduce(C value) {
    return value;
  }
};

struct WarpPerRow {
  static __device__ __forceinline__ int64 first_row() { return grid_index() / kWarpSize; }
  static __device__ __forceinline__ int64 row_step() { return grid_size() / kWarpSize; }
  static __device__ __forceinline__ int member() { return threadIdx.x % kWarpSize; }
  static __device__ __forceinline__ int members() { return kWarpSize; }
  template <typename Operation, typename C>
  static __device__ __forceinline__ C reduce(C value) {
    return reduce_warp<Operation>(value);
  }
};

struct BlockPerRow {
  static __device__ __forceinline__ int64 first_row() { return blockIdx.x; }
  static __device__ __forceinline__ int64 row_step() { return gridDim.x; }
  static __device__ __forceinline__ int member() { return threadIdx.x; }
  static __device__ __forceinline__ int members() { return blockDim.x; }
  template <typename Operation, typename C>
  static __device__ __forceinline__ C reduce(C value) {
    return reduce_block<Operation>(value);
  }
};

// Elements that a member keeps in registers: computed values of 128 bytes, half of what a thread has in a block of
// 1024. _KEPT_BYTES in dnncore/cuda/softmax.py.
template <typename T>
constexpr int kKept = 128 / sizeof(Compute<T>);
template <typename T>
constexpr int kPacks = kKept<T> / Pack<T>::kWidth;

// A pack as it is kept: single lanes of 16 bits would each take, and be moved to, a register of their own.
struct alignas(16) PackWords {
  uint32 words[4];
};

template <typename T>
__device__ __forceinline__ PackWords words_of(const Pack<T>& pack) {
  return __builtin_bit_cast(PackWords, pack);
}

template <typename T>
__device__ __forceinline__ Compute<T> lane_of(const PackWords& words, int lane) {
  return widen(__builtin_bit_cast(Pack<T>, words).lanes[lane]);
}

template <typename T>
__device__ __forceinline__ Pack<T> filled(T value) {
  Pack<T> pack;
#pragma unroll
  for (T& lane : pack.lanes) lane = value;
  return pack;
}

template <typename T>
__device__ __forceinline__ bool is_aligned(const T* row) {
  return reinterpret_cast<uint64>(row) % sizeof(Pack<T>) == 0;
}

// A stretch of a row, at most kKept elements per member of the team, and which elements are whose. Where elements are
// aligned neighbours in every tensor of the row, a member's packs are whole packs of the row; otherwise they are put
// together from elements members() apart, so that the members read neighbours. Where has(pack) is false, no member has
// an element in that pack; where it is true, index(pack, lane) may still lie beyond the span.
template <typename T, typename Team>
class Span {
 public:
  static constexpr int kWidth = Pack<T>::kWidth;

  __device__ __forceinline__ Span(int64 left, bool is_packed)
      : length(static_cast<int>(min(left, static_cast<int64>(kKept<T>) * Team::members()))), is_packed(is_packed) {}

  __device__ __forceinline__ bool has(int pack) const { return pack * kWidth * Team::members() < length; }
  __device__ __forceinline__ int index(int pack, int lane) const {
    return is_packed ? (pack * Team::members() + Team::member()) * kWidth + lane
                     : (pack * kWidth + lane) * Team::members() + Team::member();
  }
  // Which of this member's elements the span's index-th one is, or -1.
  __device__ __forceinline__ int mine(int index) const {
    if (index < 0 || index >= length) return -1;
    const int lane = is_packed ? index % kWidth : 0, unit = is_packed ? index / kWidth : index;
    if (unit % Team::members() != Team::member()) return -1;
    return is_packed ? unit / Team::members() * kWidth + lane : unit / Team::members();
  }

  int length;
  bool is_packed;
};

// A member's single elements, one after another. Adding to a pointer takes fewer registers than 32 products of 64 bits,
// which the compiler would keep from row to row.
template <typename Team, typename T>
class RowWalk {
 public:
  __device__ __forceinline__ RowWalk(T* start, int64 stride)
      : place_(start + Team::member() * stride), step_(Team::members() * stride) {}
  __device__ __forceinline__ T* next() {
    T* place = place_;
    place_ += step_;
    return place;
  }

 private:
  T* place_;
  int64 step_;
};

// Call visitor(k) for a member's elements, which k counts, and for those beyond the span in packs of which any member
// has elements.
template <typename T, typename Team, typename Visitor>
__device__ __forceinline__ void visit(const Span<T, Team>& span, const Visitor& visitor) {
#pragma unroll
  for (int pack = 0; pack < kPacks<T>; ++pack) {
    if (!span.has(pack)) break;
#pragma unroll
    for (int lane = 0; lane < span.kWidth; ++lane) visitor(pack * span.kWidth + lane);
  }
}

// The same without those beyond the span.
template <typename T, typename Team, typename Visitor>
__device__ __forceinline__ void visit_inside(const Span<T, Team>& span, const Visitor& visitor) {
  const int left = span.is_packed ? span.length / span.kWidth - Team::member() : span.length - Team::member();
#pragma unroll
  for (int k = 0; k < kKept<T>; ++k) {
    if ((span.is_packed ? k / span.kWidth : k) * Team::members() < left) visitor(k);
  }
}

// A member's packs of the span that begins at `start`, as they are stored, with `beyond` past the end. All loads are
// under way before the first is waited for, which a conversion right behind each load would prevent.
template <typename T, typename Team>
__device__ __forceinline__ void load(
    const Span<T, Team>& span, const T* start, int64 stride, T beyond, PackWords (&packs)[kPacks<T>]
) {
#pragma unroll
  for (PackWords& words : packs) words = words_of(filled(beyond));
  if (span.is_packed) {
    const PackWords* place = reinterpret_cast<const PackWords*>(start) + Team::member();
    const int left = span.length / span.kWidth - Team::member();
#pragma unroll
    for (int pack = 0; pack < kPacks<T>; ++pack) {
      if (pack * Team::members() < left) packs[pack] = place[pack * Team::members()];
    }
    return;
  }
  RowWalk<Team, const T> walk(start, stride);
  const int left = span.length - Team::member();
#pragma unroll
  for (int pack = 0; pack < kPacks<T>; ++pack) {
    if (!span.has(pack)) break;
    Pack<T> loaded = filled(beyond);
#pragma unroll
    for (int lane = 0; lane < span.kWidth; ++lane) {
      const T* place = walk.next();
      if ((pack * span.kWidth + lane) * Team::members() < left) loaded.lanes[lane] = *place;
    }
    packs[pack] = words_of(loaded);
  }
}

// The same, widened.
template <typename T, typename Team>
__device__ __forceinline__ void load(
    const Span<T, Team>& span, const T* start, int64 stride, T beyond, Compute<T> (&values)[kKept<T>]
) {
  PackWords packs[kPacks<T>];
  load(span, start, stride, beyond, packs);
#pragma unroll
  for (int k = 0; k < kKept<T>; ++k) values[k] = lane_of<T>(packs[k / span.kWidth], k % span.kWidth);
}

// Blend what set(pack, values) makes of each of a member's packs into the output that begins at `start`.
template <typename T, typename Team, typename Set>
__device__ __forceinline__ void store(const Span<T, Team>& span, const Blend& blend, T* start, int64 stride, const Set& set) {
  using C = Compute<T>;
  constexpr int kWidth = Span<T, Team>::kWidth;
  const C alpha = static_cast<C>(blend.alpha), beta = static_cast<C>(blend.beta);
  RowWalk<Team, T> walk(start, stride);
#pragma unroll
  for (int pack = 0; pack < kPacks<T>; ++pack) {
    if (!span.has(pack)) break;
    C values[kWidth];
    set(pack, values);
#pragma unroll
    for (C& value : values) value *= alpha;
    if (!span.is_packed) {
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        T* place = walk.next();
        if (span.index(pack, lane) >= span.length) continue;
        *place = narrow<T>(beta == C(0) ? values[lane] : values[lane] + beta * widen(*place));
      }
    } else if (span.index(pack, 0) < span.length) {
      PackWords* place = reinterpret_cast<PackWords*>(start) + (pack * Team::members() + Team::member());
      if (beta != C(0)) {
        const PackWords before = *place;
#pragma unroll
        for (int lane = 0; lane < kWidth; ++lane) values[lane] += beta * lane_of<T>(before, lane);
      }
      Pack<T> after;
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) after.lanes[lane] = narrow<T>(values[lane]);
      *place = words_of(after);
    }
  }
}

// Largest of a member's values; those beyond the span are minus infinity.
template <typename T, typename Team>
__device__ __forceinline__ Compute<T> largest_of(const Span<T, Team>& span, const Compute<T> (&values)[kKept<T>]) {
  Compute<T> largest = Maximum::identity<Compute<T>>();
  visit(span, [&](int k) { largest = Maximum{}(largest, values[k]); });
  return largest;
}

// Largest value of a row, and the sum of the exponentials of all values less that one. Where the largest is infinite,
// as in a row of nothing but minus infinity, the sum is NaN, and with it the softmax.
template <typename C>
struct Normaliser {
  C shift;
  C total;
};

// That of no elements, and `include`, which takes in the values of one more span; NaN goes into the sum alone.
template <typename C>
__device__ __forceinline__ Normaliser<C> empty_normaliser() {
  return {Maximum::identity<C>(), C(0)};
}

template <typename T, typename Team>
__device__ __forceinline__ void include(
    Normaliser<Compute<T>>& row, const Span<T, Team>& span, const Compute<T> (&values)[kKept<T>]
) {
  using C = Compute<T>;
  const C shift = Maximum{}(row.shift, largest_of(span, values));
  if (row.shift != shift) row.total *= exp(row.shift - shift);
  row.shift = shift;
  const C finite = shift == -C(INFINITY) ? C(0) : shift;  // the distance of minus infinity from itself would be NaN
  visit(span, [&](int k) { row.total += exp(values[k] - finite); });
}

// The normaliser of the row, from those of the team's members.
template <typename Team, typename C>
__device__ __forceinline__ Normaliser<C> reduce(const Normaliser<C>& part) {
  const C shift = Team::template reduce<Maximum>(part.shift);
  const C total = part.shift == shift ? part.total : part.total * exp(part.shift - shift);
  return {shift, Team::template reduce<Sum>(total) + (shift - shift)};
}

// Call use(start, span) for one span after another, or for the only one.
template <typename T, typename Team, bool kIsOne, typename Use>
__device__ __forceinline__ void for_each_span(int64 length, bool is_packed, const Use& use) {
  if constexpr (kIsOne) {
    use(int64(0), Span<T, Team>(length, is_packed));
  } else {
    for (int64 start = 0; start < length; start += static_cast<int64>(kKept<T>) * Team::members()) {
      use(start, Span<T, Team>(length - start, is_packed));
    }
  }
}

}  // namespace dnncore
