// Reductions (reduction.cuh) of tensors whose elements lie side by side along the innermost of the reduced dimensions, or
// of the kept ones: a thread loads vectors of neighbours, several ahead, and what an operator does to an element is decided
// once a part, not once an element.
//
//   lines      x of one output    | v v v v v v v v | v v v v v v v v | ...    neighbours become one output: a team of
//                                  t0 t1 t2 .. t31 t0 t1 ..                    threads, a warp or a block, takes a part of
//                                                                             the vectors of all its lines
//
//   columns    a vector of outputs   across ->                                 neighbours become neighbouring outputs: a
//              rows of a part   t00 t01 t02 t03                                block is as many vectors wide as fit into a
//                    |          t10 t11 t12 t13                                line, and the rest of its threads share the
//                    v down     t20 t21 t22 t23                                rows of a part
//                                  results of a warp's rows are put together by shuffles, those of warps in shared memory
//
// Sums and products are in double precision, but for the few elements of float16 that a thread has at hand; extrema are
// compared in the compute type, which loses nothing. The order is fixed.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/ptx/extremum.cuh"
#include "dnncore/reduction.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/reduction_vectors.py.
struct ReduceVectorsParams : ReduceParams {
  Divisor vectors;  // of a line: of elements of an output (lines), or of outputs (columns)
  TensorView lines; // x, the dimensions around the lines: of the elements of an output, or of outputs
  Divisor tiles;    // columns: blocks that a line of outputs takes
  int32 team;       // lines: threads that take a part, 32 or all of a block
  int32 across;     // columns: vectors of a block, a power of two
};

constexpr int kAhead = 4;  // loads that a thread has under way

// What an operator does to an element before all else; the same for all threads.
struct Preparation {
  bool absolute, squares, skips_zeros, negated;

  __device__ __forceinline__ explicit Preparation(ReduceOperator operation)
      : absolute(operation == ReduceOperator::kNorm1 || operation == ReduceOperator::kAmax),
        squares(operation == ReduceOperator::kNorm2),
        skips_zeros(operation == ReduceOperator::kMulNoZeros),
        negated(operation == ReduceOperator::kMin) {}

  // Of an element among which the largest is looked for.
  template <typename C>
  __device__ __forceinline__ C prepared(C x) const {
    return negated ? -x : absolute ? fabs(x) : x;
  }
};

// What a thread has of the elements that it took, in the order of their indices, by the kind of operator. `take` takes
// some that follow each other, `pause` is called after each few of them, and `join` is for the lanes of a warp, all of
// which must take part: each has then what it and the lane `distance` away had.
template <typename T>
struct Summing {
  double sum = 0.0;

  template <int kCount>
  __device__ __forceinline__ void take(const Preparation& with, const Compute<T> (&x)[kCount], int64) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const double value = with.absolute ? fabs(static_cast<double>(x[j])) : static_cast<double>(x[j]);
      sum = fma(value, with.squares ? value : 1.0, sum);
    }
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ void join(int distance) { sum += __shfl_xor_sync(0xffffffffu, sum, distance); }
  __device__ __forceinline__ Reduced result(const Preparation&) const { return {sum, -1}; }
};

// A few elements of float16, or their squares, are added in float32, which has 13 bits more and room for their largest:
// to widen each to float64 would take longer than to load it.
template <>
struct Summing<float16> {
  double sum = 0.0;
  float few = 0.0f;

  template <int kCount>
  __device__ __forceinline__ void take(const Preparation& with, const float (&x)[kCount], int64) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float value = with.absolute ? fabsf(x[j]) : x[j];
      few = fmaf(value, with.squares ? value : 1.0f, few);
    }
  }
  __device__ __forceinline__ void pause() {
    sum += static_cast<double>(few);
    few = 0.0f;
  }
  __device__ __forceinline__ void join(int distance) { sum += __shfl_xor_sync(0xffffffffu, sum, distance); }
  __device__ __forceinline__ Reduced result(const Preparation&) const { return {sum, -1}; }
};

struct Multiplying {
  double product = 1.0;

  template <typename C, int kCount>
  __device__ __forceinline__ void take(const Preparation& with, const C (&x)[kCount], int64) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) product *= with.skips_zeros && x[j] == C(0) ? 1.0 : static_cast<double>(x[j]);
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ void join(int distance) { product *= __shfl_xor_sync(0xffffffffu, product, distance); }
  __device__ __forceinline__ Reduced result(const Preparation&) const { return {product, -1}; }
};

// The largest, which the minimum is of negatives; NaN before all.
template <typename C>
struct Extreme {
  C best = -C(INFINITY);

  template <int kCount>
  __device__ __forceinline__ void take(const Preparation& with, const C (&x)[kCount], int64) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) best = larger(best, with.prepared(x[j]));
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ void join(int distance) { best = larger(best, __shfl_xor_sync(0xffffffffu, best, distance)); }
  // Some element has it, whichever: nobody asks for its index.
  __device__ __forceinline__ Reduced result(const Preparation& with) const {
    return {static_cast<double>(with.negated ? -best : best), 0};
  }
};

// The same and where it is: of equal values, or of NaNs, the first. The lanes that join have met their elements in turns.
template <typename C>
struct Finding {
  C best = -C(INFINITY);
  int64 index = -1;

  // What is neither smaller nor equal is larger, or NaN.
  static __device__ __forceinline__ bool exceeds(C next, C best) { return !(next <= best) && best == best; }

  template <int kCount>
  __device__ __forceinline__ void take(const Preparation& with, const C (&x)[kCount], int64 first) {
    C of_these = with.prepared(x[0]);
    int place = 0;
#pragma unroll
    for (int j = 1; j < kCount; ++j) {
      const C next = with.prepared(x[j]);
      const bool is_larger = exceeds(next, of_these);
      of_these = is_larger ? next : of_these;
      place = is_larger ? j : place;
    }
    if (index < 0 || exceeds(of_these, best)) {
      best = of_these;
      index = first + place;
    }
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ void join(int distance) {
    const Finding other = {__shfl_xor_sync(0xffffffffu, best, distance), __shfl_xor_sync(0xffffffffu, index, distance)};
    const bool is_equal = other.best == best || (other.best != other.best && best != best);
    const bool comes_before = is_equal ? other.index < index : exceeds(other.best, best);
    if (other.index >= 0 && (index < 0 || comes_before)) *this = other;
  }
  __device__ __forceinline__ Reduced result(const Preparation& with) const {
    return {static_cast<double>(with.negated ? -best : best), index};
  }
};

// Call `reduce` with what takes elements for an operator.
template <typename T, typename Reduce>
__device__ __forceinline__ void by_operator(const ReduceParams& params, Reduce reduce) {
  if (multiplies(params.operation)) {
    reduce(Multiplying{});
  } else if (!finds_an_element(params.operation)) {
    reduce(Summing<T>{});
  } else if (params.indices) {
    reduce(Finding<Compute<T>>{});
  } else {
    reduce(Extreme<Compute<T>>{});
  }
}

// Take the vectors from `begin` to `end`, every step-th: `at(n)` is where the n-th begins, `take(loaded, n)` takes it.
// Lanes that have one fewer load together with the others: a warp that parted there would wait for memory twice.
template <typename T, int kVector, typename At, typename Take>
__device__ __forceinline__ void for_vectors(const T* x, int64 begin, int64 end, int64 step, At at, Take take) {
  Loaded<T, kVector> ahead[kAhead];
  for (int64 first = begin; first < end; first += kAhead * step) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64 vector = first + i * step;
      ahead[i].load_if(vector < end, x + at(vector));
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64 vector = first + i * step;
      if (vector < end) take(ahead[i], vector);
    }
  }
}

template <typename T, int kVector, typename Taking>
__device__ __forceinline__ void take_line_vectors(
    const ReduceVectorsParams& params, const Preparation& with, const T* x, int64 begin, int64 end, int64 step, Taking& taking) {
  const auto take = [&](const Loaded<T, kVector>& loaded, int64 vector) {
    Compute<T> values[kVector];
    loaded.widen_into(values);
    taking.take(with, values, vector * kVector);
    taking.pause();
  };
  if (params.vectors.value * kVector == params.length) {  // one line: nothing has to be divided
    for_vectors<T, kVector>(x, begin, end, step, [](int64 vector) { return vector * kVector; }, take);
  } else {
    const auto at = [&](int64 vector) {
      const QuotientRemainder line = divide(vector, params.vectors);
      return offset_of(params.lines, line.quotient) + line.remainder * kVector;
    };
    for_vectors<T, kVector>(x, begin, end, step, at, take);
  }
}

// Neighbours become one output.
template <typename T, int kVector>
__device__ void reduce_lines(const ReduceVectorsParams& params) {
  __shared__ Reduced warps[kMaxWarps];
  const Preparation with(params.operation);
  const int team = params.team, rank = threadIdx.x % team, teams = blockDim.x / team;
  const int64 items = params.outputs.value * params.splits;
  for (int64 item = blockIdx.x * static_cast<int64>(teams) + threadIdx.x / team; item < items;
       item += gridDim.x * static_cast<int64>(teams)) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* const x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * (params.part / kVector);
    const int64 end = min(begin + params.part / kVector, params.length / kVector);
    Reduced result;
    by_operator<T>(params, [&](auto taking) {
      take_line_vectors<T, kVector>(params, with, x, begin + rank, end, team, taking);
#pragma unroll
      for (int distance = kWarpSize / 2; distance > 0; distance /= 2) taking.join(distance);
      result = taking.result(with);
    });
    if (team > kWarpSize) result = reduce_warps(params.operation, result, warps);
    if (rank == 0) settle<T>(params, item, split.remainder, result);
  }
}

// Neighbours become neighbouring outputs.
template <typename T, int kVector, int kThreads>
__device__ void reduce_columns(const ReduceVectorsParams& params) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ Reduced results[kThreads * kVector / 4];  // [warps][across][kVector]; a warp is 4 rows high, at least
  const Preparation with(params.operation);
  const int across = params.across, down = kThreads / across, wide = across * kVector;
  const int column = threadIdx.x % across, row = threadIdx.x / across;
  const int64 lines = params.outputs.value / (params.vectors.value * kVector);
  for (int64 item = blockIdx.x; item < lines * params.tiles.value * params.splits; item += gridDim.x) {
    const QuotientRemainder tile = divide(item, params.tiles);
    const int64 split = tile.quotient / lines, line = tile.quotient - split * lines;
    const int64 vector = tile.remainder * across + column;
    const int64 begin = split * params.part;
    const int64 end = vector < params.vectors.value ? min(begin + params.part, params.length) : begin;
    const T* const x = static_cast<const T*>(params.x) + offset_of(params.lines, line) + vector * kVector;
    Reduced* const of_warp = results + threadIdx.x / kWarpSize * wide + column * kVector;
    by_operator<T>(params, [&](auto empty) {
      decltype(empty) taking[kVector];
      int taken = 0;
      const auto at = [&](int64 n) { return offset_of(params.reduced_view, n); };
      for_vectors<T, kVector>(x, begin + row, end, down, at, [&](const Loaded<T, kVector>& loaded, int64 n) {
        Compute<T> values[kVector];
        loaded.widen_into(values);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const Compute<T> value[1] = {values[j]};
          taking[j].take(with, value, n);
        }
        if (++taken % kAhead == 0) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) taking[j].pause();
        }
      });
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        taking[j].pause();
        for (int distance = kWarpSize / 2; distance >= across; distance /= 2) taking[j].join(distance);
        if (threadIdx.x % kWarpSize < across) of_warp[j] = taking[j].result(with);
      }
    });
    __syncthreads();
    for (int i = threadIdx.x; i < wide; i += kThreads) {
      const int64 place = tile.remainder * wide + i;  // in the line
      if (place >= params.vectors.value * kVector) break;
      Reduced result = results[i];
#pragma unroll
      for (int j = 1; j < kWarps; ++j) result = together(params.operation, result, results[j * wide + i]);
      const int64 output = line * params.vectors.value * kVector + place;
      settle<T>(params, split * params.outputs.value + output, output, result);
    }
    __syncthreads();  // before the next item overwrites what others read
  }
}

}  // namespace dnncore
