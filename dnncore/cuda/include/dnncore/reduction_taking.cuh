// What a thread of the reductions by vectors (reduction_vectors.cuh) does with the vectors that it loads, by the kind of
// operator: sums, products, extrema, and extrema with the places where they are. Each kind keeps one result of all
// elements (kOwn = 1, lines), or one for each element of a vector (kOwn = kVector, columns). Operators of a kind are told
// apart by the signs that elements are given before they are looked at: one instruction for each word of 32 bits. Each kind has
// kernels of its own, since one for all would have the registers of the one that needs most, and as much code as all.
//
// `take` takes a vector, of which `first` is the index of the first element of a line, or of all elements of columns; the
// vectors follow each other in the order of their indices. `pause` is called after each few of them, `close` behind the last.
// `join` is for the lanes of a warp, all of which must take part: each has then what it and the lane `distance` away had.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/ptx/extremum.cuh"
#include "dnncore/ptx/packed_extremum.cuh"
#include "dnncore/reduction.cuh"

namespace dnncore {

// The signs of elements: cleared where magnitudes count, the others where the smallest is looked for, which is the largest of
// negatives. The same for all threads.
template <typename T>
struct Signs {
  uint32 cleared;
  uint32 flipped;

  __device__ __forceinline__ explicit Signs(ReduceOperator operation) {
    constexpr uint32 kAll = sizeof(T) == 2 ? 0x80008000u : 0x80000000u;
    cleared = operation == ReduceOperator::kNorm1 || operation == ReduceOperator::kAmax ? kAll : 0;
    flipped = operation == ReduceOperator::kMin ? kAll : 0;
  }

  template <int kVector>
  __device__ __forceinline__ Loaded<T, kVector> of(Loaded<T, kVector> loaded) const {
    uint32(&words)[kVector * sizeof(T) / 4] = reinterpret_cast<uint32(&)[kVector * sizeof(T) / 4]>(loaded.word);
#pragma unroll
    for (int i = 0; i < kVector * sizeof(T) / 4; ++i) {
      if (sizeof(T) < 8 || i % 2 == 1) words[i] = (words[i] & ~cleared) ^ flipped;  // of float64 the upper word has it
    }
    return loaded;
  }
  // What was found, as x has it.
  __device__ __forceinline__ double back(double value) const { return flipped != 0 ? -value : value; }
};

// Sums in double precision, but for the few elements of float16 that a thread has at hand, or their squares: they are added
// in float32, which has 13 bits more and room for their largest; to widen each to float64 would take longer than to load it.
template <typename T, int kVector, int kOwn, bool kSquares>
struct Summing {
  static constexpr bool kFew = std::is_same_v<T, float16>;
  double sums[kOwn] = {};
  float few[kOwn] = {};

  __device__ __forceinline__ explicit Summing(ReduceOperator) {}
  __device__ __forceinline__ void take(const Signs<T>& signs, const Loaded<T, kVector>& loaded, int64) {
    Compute<T> values[kVector];
    signs.of(loaded).widen_into(values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if constexpr (kFew) {
        few[j % kOwn] = kSquares ? fmaf(values[j], values[j], few[j % kOwn]) : few[j % kOwn] + values[j];
      } else {
        const double value = values[j];
        sums[j % kOwn] = kSquares ? fma(value, value, sums[j % kOwn]) : sums[j % kOwn] + value;
      }
    }
    if (kOwn == 1) pause();
  }
  __device__ __forceinline__ void pause() {
    if constexpr (kFew) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        sums[j] += static_cast<double>(few[j]);
        few[j] = 0.0f;
      }
    }
  }
  __device__ __forceinline__ void close() { pause(); }
  __device__ __forceinline__ void join(int j, int distance) { sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], distance); }
  __device__ __forceinline__ Reduced result(const Signs<T>&, int j) const { return {sums[j], -1}; }
};

template <typename T, int kVector, int kOwn>
struct Multiplying {
  bool skips_zeros;
  double products[kOwn];

  __device__ __forceinline__ explicit Multiplying(ReduceOperator operation) : skips_zeros(operation == ReduceOperator::kMulNoZeros) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) products[j] = 1.0;
  }
  __device__ __forceinline__ void take(const Signs<T>&, const Loaded<T, kVector>& loaded, int64) {
    Compute<T> values[kVector];
    loaded.widen_into(values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      products[j % kOwn] *= skips_zeros && values[j] == Compute<T>(0) ? 1.0 : static_cast<double>(values[j]);
    }
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ void close() {}
  __device__ __forceinline__ void join(int j, int distance) { products[j] *= __shfl_xor_sync(0xffffffffu, products[j], distance); }
  __device__ __forceinline__ Reduced result(const Signs<T>&, int j) const { return {products[j], -1}; }
};

// The largest of elements with their signs; NaN before all. Each place of a vector has one of its own, in 16 bits two of them
// in a word: nothing is widened before the last vector.
template <typename T, int kVector, int kOwn>
struct Extreme {
  using C = Compute<T>;
  Loaded<T, kVector> best;
  C found[kOwn];

  __device__ __forceinline__ explicit Extreme(ReduceOperator) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) reinterpret_cast<T*>(&best.word)[j] = narrow<T>(-C(INFINITY));
  }
  __device__ __forceinline__ void take(const Signs<T>& signs, const Loaded<T, kVector>& loaded, int64) {
    const Loaded<T, kVector> next = signs.of(loaded);
    using Item = std::conditional_t<sizeof(T) == 2, uint32, T>;
    auto* const mine = reinterpret_cast<Item*>(&best.word);
    const auto* const others = reinterpret_cast<const Item*>(&next.word);
#pragma unroll
    for (int i = 0; i < kVector * sizeof(T) / sizeof(Item); ++i) {
      if constexpr (std::is_same_v<T, float16>) {
        mine[i] = larger_f16x2(mine[i], others[i]);
      } else if constexpr (std::is_same_v<T, bfloat16>) {
        mine[i] = larger_bf16x2(mine[i], others[i]);
      } else {
        mine[i] = larger(mine[i], others[i]);
      }
    }
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ void close() {
    C values[kVector];
    best.widen_into(values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) found[j % kOwn] = j < kOwn ? values[j] : larger(found[j % kOwn], values[j]);
  }
  __device__ __forceinline__ void join(int j, int distance) {
    found[j] = larger(found[j], __shfl_xor_sync(0xffffffffu, found[j], distance));
  }
  // Some element has it, whichever: nobody asks for its index.
  __device__ __forceinline__ Reduced result(const Signs<T>& signs, int j) const { return {signs.back(found[j]), 0}; }
};

// The same and where it is: of equal values, or of NaNs, the first. The lanes that join have met their elements in turns.
template <typename T, int kVector, int kOwn>
struct Finding {
  using C = Compute<T>;
  C best[kOwn];
  int64 indices[kOwn];

  __device__ __forceinline__ explicit Finding(ReduceOperator) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      best[j] = -C(INFINITY);
      indices[j] = -1;
    }
  }
  // What is neither smaller nor equal is larger, or NaN.
  static __device__ __forceinline__ bool exceeds(C next, C best) { return !(next <= best) && best == best; }

  __device__ __forceinline__ void take(const Signs<T>& signs, const Loaded<T, kVector>& loaded, int64 first) {
    C values[kVector];
    signs.of(loaded).widen_into(values);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      C of_these = values[j];
      int place = 0;
#pragma unroll
      for (int i = j + kOwn; i < kVector; i += kOwn) {
        const bool is_larger = exceeds(values[i], of_these);
        of_these = is_larger ? values[i] : of_these;
        place = is_larger ? i : place;
      }
      if (indices[j] < 0 || exceeds(of_these, best[j])) {
        best[j] = of_these;
        indices[j] = first + place;
      }
    }
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ void close() {}
  __device__ __forceinline__ void join(int j, int distance) {
    const C other = __shfl_xor_sync(0xffffffffu, best[j], distance);
    const int64 index = __shfl_xor_sync(0xffffffffu, indices[j], distance);
    const bool is_equal = other == best[j] || (other != other && best[j] != best[j]);
    const bool comes_before = is_equal ? index < indices[j] : exceeds(other, best[j]);
    if (index >= 0 && (indices[j] < 0 || comes_before)) {
      best[j] = other;
      indices[j] = index;
    }
  }
  __device__ __forceinline__ Reduced result(const Signs<T>& signs, int j) const { return {signs.back(best[j]), indices[j]}; }
};

// Kinds of operators, which have kernels of their own; mirrored by _kind in dnncore/cuda/reduction_vectors.py.
enum class Kind { kSums, kSquares, kProducts, kExtrema, kPlaces };

template <typename T, int kVector, int kOwn, Kind kKind>
using Taking = std::conditional_t<
    kKind == Kind::kProducts, Multiplying<T, kVector, kOwn>,
    std::conditional_t<
        kKind == Kind::kExtrema, Extreme<T, kVector, kOwn>,
        std::conditional_t<kKind == Kind::kPlaces, Finding<T, kVector, kOwn>, Summing<T, kVector, kOwn, kKind == Kind::kSquares>>>>;

}  // namespace dnncore
