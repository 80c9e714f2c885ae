// Reductions (reduction.cuh) of tensors whose elements lie side by side along the innermost of the reduced dimensions, or
// of the kept ones: a thread loads vectors of neighbours, and what an operator does to an element is decided once a part,
// not once an element (reduction_taking.cuh).
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
// A thread has kAhead loads under way at any time: as soon as it has taken one vector it asks for the kAhead-th after it. Were all
// of them asked for and then all taken, memory would wait for the threads half of the time and the threads for memory the other
// half. Where vectors are equally far apart, the next one's address is an addition.
//
// The order is fixed, and depends on the launch alone.
#pragma once

#include "dnncore/reduction_taking.cuh"

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

// A thread's vectors from `begin` to `end`, every step-th; steps are powers of two.
struct Vectors {
  int64 first;
  int32 step;
  int32 count;  // 2^31 of them would be more than the memory of any device

  __device__ __forceinline__ Vectors(int64 begin, int64 end, int32 rank, int32 step)
      : first(begin + rank), step(step), count(first < end ? static_cast<int32>((end - first + step - 1) >> (__ffs(step) - 1)) : 0) {}
};

// Nobody looks at what was not read, which `Loaded::load_if` makes zeros.
template <typename T, int kVector>
__device__ __forceinline__ void load_where(bool there, Loaded<T, kVector>& into, const T* place) {
  if (there) into.word = *reinterpret_cast<const decltype(into.word)*>(place);
}

// Take vectors one after another: next() says where the next one is, take(loaded, n) takes the n-th of all, and pause() is called
// after every kAhead. Lanes that have one fewer ask for their last ones together with the others.
template <typename T, int kVector, typename Next, typename Take, typename Pause>
__device__ __forceinline__ void for_each(const Vectors& vectors, Next next, Take take, Pause pause) {
  Loaded<T, kVector> ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_where(i < vectors.count, ahead[i], next());
  int64 n = vectors.first;
  int32 left = vectors.count;
  for (; left >= kAhead; left -= kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      take(ahead[i], n);
      load_where(kAhead + i < left, ahead[i], next());
      n += vectors.step;
    }
    pause();
  }
#pragma unroll
  for (int i = 0; i < kAhead - 1; ++i) {
    if (i < left) take(ahead[i], n);
    n += vectors.step;
  }
}

// The same where finding a vector takes a division for each dimension: at(n) says where the n-th is. They are few, or the copies of
// a division would be many.
template <typename T, int kVector, typename At, typename Take, typename Pause>
__device__ __forceinline__ void for_each_anywhere(const Vectors& vectors, At at, Take take, Pause pause) {
  int64 n = vectors.first;
  for (int32 left = vectors.count; left > 0; left -= kAhead) {
    Loaded<T, kVector> ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i < left) load_where(true, ahead[i], at(n + i * vectors.step));
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i < left) take(ahead[i], n);
      n += vectors.step;
    }
    pause();
  }
}

// Where one vector after another is, equally far apart.
template <typename T>
struct Straight {
  const T* place;
  int64 step;

  __device__ __forceinline__ const T* operator()() {
    const T* const here = place;
    place += step;
    return here;
  }
};

// The same along lines that are equally far apart: a step that leads beyond the end of a line goes on in the next, as far behind its
// beginning.
template <typename T, int kVector>
struct AlongLines {
  const T* place;
  int64 step;
  int64 carry;
  int64 column;
  int64 column_step;
  int64 columns;

  __device__ __forceinline__ AlongLines(const ReduceVectorsParams& params, const T* x, const Vectors& vectors) {
    const QuotientRemainder first = divide(vectors.first, params.vectors);
    const QuotientRemainder further = divide(static_cast<int64>(vectors.step), params.vectors);
    columns = params.vectors.value;
    column = first.remainder;
    column_step = further.remainder;
    place = x + (first.quotient * params.lines.strides[0] + column * kVector);
    step = further.quotient * params.lines.strides[0] + column_step * kVector;
    carry = params.lines.strides[0] - columns * kVector;
  }

  __device__ __forceinline__ const T* operator()() {
    const T* const here = place;
    place += step;
    column += column_step;
    if (column >= columns) {
      column -= columns;
      place += carry;
    }
    return here;
  }
};

// Neighbours become one output.
template <typename T, int kVector, Kind kKind>
__device__ void reduce_lines(const ReduceVectorsParams& params) {
  __shared__ Reduced warps[kMaxWarps];
  wait_for_previous();
  let_next_start();
  const Signs<T> signs(params.operation);
  const int team = params.team, rank = threadIdx.x % team, teams = blockDim.x / team;
  const int64 items = params.outputs.value * params.splits;
  for (int64 item = blockIdx.x * static_cast<int64>(teams) + threadIdx.x / team; item < items;
       item += gridDim.x * static_cast<int64>(teams)) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* const x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * (params.part / kVector);
    const Vectors vectors(begin, min(begin + params.part / kVector, params.length / kVector), rank, team);
    Taking<T, kVector, 1, kKind> taking(params.operation);
    const auto take = [&](const Loaded<T, kVector>& loaded, int64 n) { taking.take(signs, loaded, n * kVector); };
    const auto pause = [&] { taking.pause(); };
    if (params.vectors.value * kVector == params.length) {
      for_each<T, kVector>(vectors, Straight<T>{x + vectors.first * kVector, team * kVector}, take, pause);
    } else if (params.lines.ndim == 1) {
      for_each<T, kVector>(vectors, AlongLines<T, kVector>(params, x, vectors), take, pause);
    } else {
      const auto at = [&](int64 n) {
        const QuotientRemainder line = divide(n, params.vectors);
        return x + (offset_of(params.lines, line.quotient) + line.remainder * kVector);
      };
      for_each_anywhere<T, kVector>(vectors, at, take, pause);
    }
    taking.close();
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) taking.join(0, distance);
    Reduced result = taking.result(signs, 0);
    if (team > kWarpSize) result = reduce_warps(params.operation, result, warps);
    if (rank == 0) settle<T>(params, item, split.remainder, result);
  }
}

// Neighbours become neighbouring outputs.
template <typename T, int kVector, Kind kKind, int kThreads>
__device__ void reduce_columns(const ReduceVectorsParams& params) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ Reduced results[kThreads * kVector / 4];  // [warps][across][kVector]; a warp is 4 rows high, at least
  wait_for_previous();
  let_next_start();
  const Signs<T> signs(params.operation);
  const int across = params.across, down = kThreads / across, wide = across * kVector;
  const int column = threadIdx.x % across, row = threadIdx.x / across;
  const int64 lines = params.outputs.value / (params.vectors.value * kVector);
  for (int64 item = blockIdx.x; item < lines * params.tiles.value * params.splits; item += gridDim.x) {
    const QuotientRemainder tile = divide(item, params.tiles);
    const int64 split = tile.quotient / lines, line = tile.quotient - split * lines;
    const int64 vector = tile.remainder * across + column;
    const int64 begin = split * params.part;
    const int64 end = vector < params.vectors.value ? min(begin + params.part, params.length) : begin;
    const Vectors rows(begin, end, row, down);
    const T* const x = static_cast<const T*>(params.x) + offset_of(params.lines, line) + vector * kVector;
    Reduced* const of_warp = results + threadIdx.x / kWarpSize * wide + column * kVector;
    Taking<T, kVector, kVector, kKind> taking(params.operation);
    const auto take = [&](const Loaded<T, kVector>& loaded, int64 n) { taking.take(signs, loaded, n); };
    const auto pause = [&] { taking.pause(); };
    if (params.reduced_view.ndim == 1) {
      const int64 step = params.reduced_view.strides[0];
      for_each<T, kVector>(rows, Straight<T>{x + rows.first * step, down * step}, take, pause);
    } else {
      const auto at = [&](int64 n) { return x + offset_of(params.reduced_view, n); };
      for_each_anywhere<T, kVector>(rows, at, take, pause);
    }
    taking.close();
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      for (int distance = kWarpSize / 2; distance >= across; distance /= 2) taking.join(j, distance);
      if (threadIdx.x % kWarpSize < across) of_warp[j] = taking.result(signs, j);
    }
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
