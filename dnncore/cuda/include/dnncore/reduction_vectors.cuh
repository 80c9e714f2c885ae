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
//                                  results of `down` threads are put together in shared memory
//
// Sums and products are in double precision, but for the few elements of float16 that a thread has at hand; extrema are
// compared in the compute type, which loses nothing. The order is fixed.
#pragma once

#include "dnncore/common/loaded.cuh"
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
};

// What a thread has of the elements that it took, in the order of their indices, by the kind of operator; `pause` is
// called after each few of them.
template <typename T>
struct Summing {
  double sum = 0.0;

  __device__ __forceinline__ void take(const Preparation& with, Compute<T> x, int64) {
    const double value = with.absolute ? fabs(static_cast<double>(x)) : static_cast<double>(x);
    sum = fma(value, with.squares ? value : 1.0, sum);
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ Reduced result(const Preparation&) const { return {sum, -1}; }
};

// A few elements of float16, or their squares, are added in float32, which has 13 bits more and room for their largest:
// to widen each to float64 would take longer than to load it.
template <>
struct Summing<float16> {
  double sum = 0.0;
  float few = 0.0f;

  __device__ __forceinline__ void take(const Preparation& with, float x, int64) {
    const float value = with.absolute ? fabsf(x) : x;
    few = fmaf(value, with.squares ? value : 1.0f, few);
  }
  __device__ __forceinline__ void pause() {
    sum += static_cast<double>(few);
    few = 0.0f;
  }
  __device__ __forceinline__ Reduced result(const Preparation&) const { return {sum, -1}; }
};

struct Multiplying {
  double product = 1.0;

  template <typename C>
  __device__ __forceinline__ void take(const Preparation& with, C x, int64) {
    product *= with.skips_zeros && x == C(0) ? 1.0 : static_cast<double>(x);
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ Reduced result(const Preparation&) const { return {product, -1}; }
};

// The largest, which the minimum is of negatives; NaN before all.
template <typename C>
struct Finding {
  C best = -C(INFINITY);
  int64 index = -1;

  __device__ __forceinline__ void take(const Preparation& with, C x, int64 i) {
    const C value = with.negated ? -x : with.absolute ? fabs(x) : x;
    if (index < 0 || value > best || (value != value && best == best)) {
      best = value;
      index = i;
    }
  }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ Reduced result(const Preparation& with) const {
    return {static_cast<double>(with.negated ? -best : best), index};
  }
};

// Call `reduce` with what takes elements for an operator.
template <typename T, typename Reduce>
__device__ __forceinline__ Reduced by_operator(ReduceOperator operation, Reduce reduce) {
  if (finds_an_element(operation)) return reduce(Finding<Compute<T>>{});
  if (multiplies(operation)) return reduce(Multiplying{});
  return reduce(Summing<T>{});
}

// Take the vectors from `begin` to `end`, every step-th: `at(n)` is where the n-th begins, `take(loaded, n)` takes it.
template <typename T, int kVector, typename At, typename Take>
__device__ __forceinline__ void for_vectors(const T* x, int64 begin, int64 end, int64 step, At at, Take take) {
  Loaded<T, kVector> ahead[kAhead];
  int64 first = begin;
  for (; first + (kAhead - 1) * step < end; first += kAhead * step) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i].load_if(true, x + at(first + i * step));
#pragma unroll
    for (int i = 0; i < kAhead; ++i) take(ahead[i], first + i * step);
  }
#pragma unroll
  for (int i = 0; i < kAhead - 1; ++i) {  // what is left is loaded together, too: short lines have nothing else
    const int64 vector = first + i * step;
    if (vector < end) ahead[i].load_if(true, x + at(vector));
  }
#pragma unroll
  for (int i = 0; i < kAhead - 1; ++i) {
    const int64 vector = first + i * step;
    if (vector < end) take(ahead[i], vector);
  }
}

template <typename T, int kVector, typename Taking>
__device__ __forceinline__ Reduced reduce_line_vectors(
    const ReduceVectorsParams& params, const T* x, int64 begin, int64 end, int64 step, Taking taking) {
  const Preparation with(params.operation);
  const auto take = [&](const Loaded<T, kVector>& loaded, int64 vector) {
    Compute<T> values[kVector];
    loaded.widen_into(values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) taking.take(with, values[j], vector * kVector + j);
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
  return taking.result(with);
}

// Neighbours become one output.
template <typename T, int kVector>
__device__ void reduce_lines(const ReduceVectorsParams& params) {
  __shared__ Reduced warps[kMaxWarps];
  const int team = params.team, rank = threadIdx.x % team, teams = blockDim.x / team;
  const int64 items = params.outputs.value * params.splits;
  for (int64 item = blockIdx.x * static_cast<int64>(teams) + threadIdx.x / team; item < items;
       item += gridDim.x * static_cast<int64>(teams)) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* const x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * (params.part / kVector);
    const int64 end = min(begin + params.part / kVector, params.length / kVector);
    Reduced result = by_operator<T>(params.operation, [&](auto taking) {
      return reduce_line_vectors<T, kVector>(params, x, begin + rank, end, team, taking);
    });
    result = reduce_warp(params.operation, result);
    if (team > kWarpSize) result = reduce_warps(params.operation, result, warps);
    if (rank == 0) settle<T>(params, item, split.remainder, result);
  }
}

template <typename T, int kVector, typename Taking>
__device__ __forceinline__ void reduce_column_vectors(
    const ReduceVectorsParams& params, const T* x, int64 begin, int64 end, int64 step, Taking, Reduced* results) {
  const Preparation with(params.operation);
  Taking taking[kVector];
  int taken = 0;
  const auto at = [&](int64 row) { return offset_of(params.reduced_view, row); };
  for_vectors<T, kVector>(x, begin, end, step, at, [&](const Loaded<T, kVector>& loaded, int64 row) {
    Compute<T> values[kVector];
    loaded.widen_into(values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) taking[j].take(with, values[j], row);
    if (++taken % kAhead == 0) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) taking[j].pause();
    }
  });
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    taking[j].pause();
    results[j] = taking[j].result(with);
  }
}

// Neighbours become neighbouring outputs.
template <typename T, int kVector, int kThreads>
__device__ void reduce_columns(const ReduceVectorsParams& params) {
  __shared__ Reduced results[kThreads * kVector];  // [down][across][kVector]
  const int across = params.across, down = kThreads / across, wide = across * kVector;
  const int column = threadIdx.x % across, row = threadIdx.x / across;
  const int64 lines = params.outputs.value / (params.vectors.value * kVector);
  for (int64 item = blockIdx.x; item < lines * params.tiles.value * params.splits; item += gridDim.x) {
    const QuotientRemainder tile = divide(item, params.tiles);
    const int64 split = tile.quotient / lines, line = tile.quotient - split * lines;
    const int64 vector = tile.remainder * across + column;
    const int64 begin = split * params.part, end = min(begin + params.part, params.length);
    if (vector < params.vectors.value) {
      const T* const x = static_cast<const T*>(params.x) + offset_of(params.lines, line) + vector * kVector;
      Reduced* const mine = results + threadIdx.x * kVector;
      by_operator<T>(params.operation, [&](auto empty) {
        reduce_column_vectors<T, kVector>(params, x, begin + row, end, down, empty, mine);
        return Reduced{};
      });
    }
    __syncthreads();
    for (int i = threadIdx.x; i < wide; i += kThreads) {
      const int64 place = tile.remainder * wide + i;  // in the line
      if (place >= params.vectors.value * kVector) break;
      Reduced result = results[i];
      for (int j = 1; j < down; ++j) result = together(params.operation, result, results[j * wide + i]);
      const int64 output = line * params.vectors.value * kVector + place;
      settle<T>(params, split * params.outputs.value + output, output, result);
    }
    __syncthreads();  // before the next item overwrites what others read
  }
}

}  // namespace dnncore
