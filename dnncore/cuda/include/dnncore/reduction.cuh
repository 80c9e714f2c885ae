// Reductions over some dimensions of a tensor by an operator that is chosen at run time, in double precision and in a
// fixed order. An output's elements are cut into `splits` parts, so that a few long reductions still fill the GPU. The
// first level leaves what became of each part in the workspace, and the second puts the parts of an output together.
// With one part the first level writes the output itself.
//
//    elements of an output    |   part 0   |   part 1   |   part 2   |     first level: a block, or a thread, per part
//    workspace                [splits][outputs]
//    output                   part 0, part 1, part 2 together              second level: a block for 8 outputs, or fewer
#pragma once

#include "dnncore/common/reduce.cuh"
#include "dnncore/common/tensor.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore {

// Mirrored by _OPERATORS in dnncore/cuda/reduction.py.
enum class ReduceOperator : int32 { kAdd, kMul, kMin, kMax, kAmax, kAvg, kNorm1, kNorm2, kMulNoZeros };

// What some elements became: `index` is that of the element found, -1 while there is none. Mirrored by _PART in
// dnncore/cuda/reduction.py.
struct alignas(16) Reduced {
  double value;
  int64 index;
};

// Mirrored by _PARAMS in dnncore/cuda/reduction.py.
struct ReduceParams {
  Blend blend;
  const void* x;
  void* output;
  int32* indices;   // may be null
  Reduced* parts;   // [splits, outputs]; null where there is one part
  Divisor outputs;
  int64 length;     // elements that become one output
  int64 splits;
  int64 part;       // elements per part; the last may have fewer
  TensorView kept_view;    // x: where an output's elements start
  TensorView reduced_view; // x: from there to each of them
  TensorView output_view;
  TensorView indices_view;
  ReduceOperator operation;
  int32 abreast;  // outputs whose parts a block puts together: a power of two, 8 at most
};

__device__ __forceinline__ bool finds_an_element(ReduceOperator operation) {
  return operation == ReduceOperator::kMin || operation == ReduceOperator::kMax || operation == ReduceOperator::kAmax;
}

__device__ __forceinline__ bool multiplies(ReduceOperator operation) {
  return operation == ReduceOperator::kMul || operation == ReduceOperator::kMulNoZeros;
}

// What no elements become: the identity of the operator.
__device__ __forceinline__ Reduced nothing(ReduceOperator operation) {
  if (multiplies(operation)) return {1.0, -1};
  if (!finds_an_element(operation)) return {0.0, -1};
  return {operation == ReduceOperator::kMin ? static_cast<double>(INFINITY) : -static_cast<double>(INFINITY), -1};
}

// What one element becomes.
__device__ __forceinline__ Reduced of_element(ReduceOperator operation, double x, int64 index) {
  switch (operation) {
    case ReduceOperator::kAmax:
    case ReduceOperator::kNorm1: return {fabs(x), index};
    case ReduceOperator::kNorm2: return {x * x, index};
    case ReduceOperator::kMulNoZeros: return {x == 0.0 ? 1.0 : x, index};
    default: return {x, index};
  }
}

// Commutative; of equal values the one with the lowest index is found, and NaN before all, in whatever order threads
// meet.
__device__ __forceinline__ Reduced together(ReduceOperator operation, Reduced a, Reduced b) {
  if (multiplies(operation)) return {a.value * b.value, -1};
  if (!finds_an_element(operation)) return {a.value + b.value, -1};
  if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
  const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
  const bool a_first = a.index < b.index;
  if (a_is_nan || b_is_nan) return a_is_nan && (!b_is_nan || a_first) ? a : b;
  if (a.value == b.value) return a_first ? a : b;
  return (a.value < b.value) == (operation == ReduceOperator::kMin) ? a : b;
}

__device__ __forceinline__ double finished(const ReduceParams& params, double value) {
  if (params.operation == ReduceOperator::kAvg) return value / static_cast<double>(params.length);
  return params.operation == ReduceOperator::kNorm2 ? sqrt(value) : value;
}

template <typename T>
__device__ __forceinline__ void write(const ReduceParams& params, int64 output, Reduced result) {
  const auto value = static_cast<Compute<T>>(finished(params, result.value));
  blend_into(params.blend, value, static_cast<T*>(params.output) + offset_of(params.output_view, output));
  if (params.indices) params.indices[offset_of(params.indices_view, output)] = static_cast<int32>(result.index);
}

// Reduce every step-th element of a part, from `begin` on.
template <typename T>
__device__ __forceinline__ Reduced reduce_elements(const ReduceParams& params, const T* x, int64 begin, int64 end, int64 step) {
  Reduced result = nothing(params.operation);
  for (int64 i = begin; i < end; i += step) {
    const double value = widen(x[offset_of(params.reduced_view, i)]);
    result = together(params.operation, result, of_element(params.operation, value, i));
  }
  return result;
}

// What the lane `distance` away has. All lanes of the warp must take part.
__device__ __forceinline__ Reduced shuffled(Reduced mine, int distance) {
  return {__shfl_xor_sync(0xffffffffu, mine.value, distance), __shfl_xor_sync(0xffffffffu, mine.index, distance)};
}

__device__ __forceinline__ Reduced reduce_warp(ReduceOperator operation, Reduced mine) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) mine = together(operation, mine, shuffled(mine, distance));
  return mine;
}

// What the warps of a block have, in every thread of the first of them. All threads must take part.
__device__ __forceinline__ Reduced reduce_warps(ReduceOperator operation, Reduced of_warp, Reduced* warps) {
  const int lane = threadIdx.x % kWarpSize;
  __syncthreads();  // readers of a previous reduction are done
  if (lane == 0) warps[threadIdx.x / kWarpSize] = of_warp;
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return of_warp;
  const bool there = lane < static_cast<int>(blockDim.x) / kWarpSize;
  return reduce_warp(operation, there ? warps[lane] : nothing(operation));
}

// Keep what became of a part, or write it where it is all of an output.
template <typename T>
__device__ __forceinline__ void settle(const ReduceParams& params, int64 part, int64 output, Reduced result) {
  if (params.parts) {
    params.parts[part] = result;
  } else {
    write<T>(params, output, result);
  }
}

// A block reduces a part: for few outputs of many elements.
template <typename T>
__device__ void reduce_block(const ReduceParams& params) {
  __shared__ Reduced warps[kMaxWarps];
  for (int64 item = blockIdx.x; item < params.outputs.value * params.splits; item += gridDim.x) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* const x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * params.part;
    const int64 end = min(begin + params.part, params.length);
    const Reduced mine = reduce_elements(params, x, begin + threadIdx.x, end, blockDim.x);
    const Reduced result = reduce_warps(params.operation, reduce_warp(params.operation, mine), warps);
    if (threadIdx.x == 0) settle<T>(params, item, split.remainder, result);
  }
}

// A thread reduces a part: where outputs have few elements, or where neighbouring outputs' elements are neighbours in
// memory.
template <typename T>
__device__ void reduce_thread(const ReduceParams& params) {
  for (int64 item = grid_index(); item < params.outputs.value * params.splits; item += grid_size()) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* const x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * params.part;
    const Reduced result = reduce_elements(params, x, begin, min(begin + params.part, params.length), 1);
    settle<T>(params, item, split.remainder, result);
  }
}

// The second level: a block for `abreast` neighbouring outputs, whose threads share their parts and have several under way. It
// starts early, and begins when all parts are there.
constexpr int kPartsThreads = 256;  // _THREADS of dnncore/cuda/reduction.py
constexpr int kMostAbreast = 8;
constexpr int kPartsAhead = 4;

template <typename T>
__device__ void reduce_parts(const ReduceParams& params) {
  constexpr int kWarps = kPartsThreads / kWarpSize;
  __shared__ Reduced results[kWarps * kMostAbreast];
  wait_for_previous();
  let_next_start();
  const int abreast = params.abreast, down = kPartsThreads / abreast;
  const int column = threadIdx.x % abreast, row = threadIdx.x / abreast;
  for (int64 first = blockIdx.x * static_cast<int64>(abreast); first < params.outputs.value;
       first += gridDim.x * static_cast<int64>(abreast)) {
    const int64 output = first + column;
    const bool exists = output < params.outputs.value;
    Reduced result = nothing(params.operation);
    for (int64 part = row; part < params.splits; part += kPartsAhead * down) {
      Reduced found[kPartsAhead];
#pragma unroll
      for (int k = 0; k < kPartsAhead; ++k) {
        const int64 next = part + k * down;
        found[k] = exists && next < params.splits ? params.parts[next * params.outputs.value + output] : nothing(params.operation);
      }
#pragma unroll
      for (int k = 0; k < kPartsAhead; ++k) result = together(params.operation, result, found[k]);
    }
    for (int distance = kWarpSize / 2; distance >= abreast; distance /= 2) {
      result = together(params.operation, result, shuffled(result, distance));
    }
    if (threadIdx.x % kWarpSize < abreast) results[threadIdx.x / kWarpSize * abreast + column] = result;
    __syncthreads();
    if (row == 0 && exists) {
#pragma unroll
      for (int j = 1; j < kWarps; ++j) result = together(params.operation, result, results[j * abreast + column]);
      write<T>(params, output, result);
    }
    __syncthreads();  // before the next outputs overwrite what the first row reads
  }
}

}  // namespace dnncore
