// The filter gradient of a depthwise convolution: for each of few taps a sum over the batch and all places, in two
// levels and without atomics, so that the same input gives the same bits. A thread adds up kTaps taps of one row of the
// filter for kVector channels, walking along one axis: the n-th of every tap_step-th tap and the t-th of every
// place_step-th output share place n + t of x, so that each element of x is read once per row of taps. The threads of a
// block share out the rows of taps, so that all but the first of them read from the L1 cache. More parts keep more
// blocks busy, but each is written to the workspace, [parts, filters, taps], and read again by the second kernel.
//
//    images x places across   |   part 0   |   part 1   | ... |       a block per part, chunk and group of jobs
//    threads of a block       [job][walker][vector of channels]       a job is up to kTaps taps of one row;
//                                  |                                  walkers take the part's items in turn
//    shared memory            sums over the walkers
//                                  |
//    workspace                [parts][filters][across taps][along taps]
//                                  |                                  second kernel: 32 neighbouring sums per block,
//    dw                       [filters][taps]                         whose 16 warps take the parts in turn
#pragma once

#include "dnncore/common/reduce.cuh"
#include "dnncore/convolution/depthwise.cuh"

namespace dnncore::depthwise {

constexpr int kTaps = 4;

// Mirrored by _PARAMS in dnncore/cuda/convolution/depthwise_filter.py.
struct FilterParams {
  Blend blend;
  const void* x;
  const void* dy;
  void* parts;              // [parts, filters, across taps, along taps] in the compute type
  int64 x_image;
  int64 x_channel;
  int64 dy_image;
  int64 dy_channel;
  Axis along;               // source: x; output: dy
  Axis across;
  Divisor across_places;    // of dy
  SmallDivisor multiplier;  // filters per channel
  int64 items;              // images times places across
  int64 part;               // items per part
  int32 filters;
  int32 chunks;             // of vectors of channels
  int32 vectors;            // per chunk, a power of two
  int32 walkers;            // threads that share a block's items
  int32 jobs;               // rows of taps, cut into runs of kTaps
  int32 job_groups;         // a block takes one group of them
  int32 runs;               // of kTaps taps, per row and class
};

// What a thread adds up: up to kTaps taps of one row, taken from every tap_step-th tap.
struct Job {
  int32 row;
  int32 first;
  int32 count;

  static __device__ __forceinline__ Job of(const FilterParams& params, int32 number) {
    const Axis& along = params.along;
    const int32 classes = min(along.tap_step, along.filter);
    const int32 run = number % params.runs, which = number / params.runs % classes;
    const int32 first = which + run * kTaps * along.tap_step;
    const int32 left = taps_of_class(along, which) - run * kTaps;
    return {number / params.runs / classes, first, min(max(left, 0), kTaps)};
  }
};

// Add the products along one line of dy.
template <typename T, int kVector>
__device__ __forceinline__ void add_line(
    const T* x, const T* dy, const Axis& axis, int32 first_tap, int32 phase, Compute<T> (&sums)[kTaps][kVector]) {
  Compute<T> values[2 * kTaps - 1][kVector] = {};
  int32 place = phase * axis.stride - axis.padding + first_tap * axis.dilation, output = phase;
  const int32 x_step = axis.common * axis.source_stride * static_cast<int32>(sizeof(T));
  const int32 dy_step = axis.place_step * axis.output_stride * static_cast<int32>(sizeof(T));
  x += static_cast<int64>(place) * axis.source_stride;
  dy += static_cast<int64>(output) * axis.output_stride;
  const auto load = [&](Loaded<T, kVector>& into, int32 n) {
    into.load_if(
        static_cast<uint32>(place + n * axis.common) < static_cast<uint32>(axis.source), nth_place(x, n, x_step));
  };
  Loaded<T, kVector> first_loaded[kTaps - 1];
#pragma unroll
  for (int n = 0; n < kTaps - 1; ++n) load(first_loaded[n], n);
#pragma unroll
  for (int n = 0; n < kTaps - 1; ++n) first_loaded[n].widen_into(values[n]);
  for (; output < axis.output; output += kTaps * axis.place_step) {
    Loaded<T, kVector> loaded[kTaps], gradients[kTaps];
    const auto is_there = [&](int t) { return output + t * axis.place_step < axis.output; };
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      load(loaded[t], kTaps - 1 + t);
      gradients[t].load_if(is_there(t), nth_place(dy, t, dy_step));
    }
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      if (!is_there(t)) break;  // where dy has no element, x may hold an infinity
      Compute<T> gradient[kVector];
      loaded[t].widen_into(values[kTaps - 1 + t]);
      gradients[t].widen_into(gradient);
#pragma unroll
      for (int n = 0; n < kTaps; ++n) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[n][i] += gradient[i] * values[n + t][i];
      }
    }
#pragma unroll
    for (int n = 0; n < kTaps - 1; ++n) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[n][i] = values[n + kTaps][i];
    }
    place += kTaps * axis.common;
    x = nth_place(x, kTaps, x_step);
    dy = nth_place(dy, kTaps, dy_step);
  }
}

// The threads of a block are [job][walker][vector]. Vectors are as in strips_of_channels.
template <typename T, int kVector>
__device__ void filter_parts(const FilterParams& params) {
  using C = Compute<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  C* const totals = reinterpret_cast<C*>(shared);  // [kTaps * kVector][threads]
  const Axis &along = params.along, &across = params.across;
  const int32 chunk = blockIdx.x % params.chunks, group = blockIdx.x / params.chunks % params.job_groups;
  const int64 part = blockIdx.x / params.chunks / params.job_groups;
  const int32 team = params.vectors * params.walkers, jobs = blockDim.x / team, first_job = group * jobs;
  const int32 lane = threadIdx.x % params.vectors, walker = threadIdx.x / params.vectors % params.walkers;
  const int32 k = (chunk * params.vectors + lane) * kVector;
  const int32 number = first_job + static_cast<int32>(threadIdx.x) / team;
  const Job job = Job::of(params, number);

  C sums[kTaps][kVector] = {};
  if (k < params.filters && number < params.jobs && job.count > 0) {
    const T* const x = static_cast<const T*>(params.x) + divide(k, params.multiplier).quotient * params.x_channel;
    const T* const dy = static_cast<const T*>(params.dy) + k * params.dy_channel;
    const int64 end = min((part + 1) * params.part, params.items);
    for (int64 item = part * params.part + walker; item < end; item += params.walkers) {
      const QuotientRemainder image = divide(item, params.across_places);
      const int32 at = static_cast<int32>(image.remainder);
      const int32 place = at * across.stride - across.padding + job.row * across.dilation;
      if (static_cast<uint32>(place) >= static_cast<uint32>(across.source)) continue;
      const T* const x_line = x + image.quotient * params.x_image + static_cast<int64>(place) * across.source_stride;
      const T* const dy_line = dy + image.quotient * params.dy_image + static_cast<int64>(at) * across.output_stride;
      for (int32 phase = 0; phase < min(along.place_step, along.output); ++phase) {
        add_line<T, kVector>(x_line, dy_line, along, job.first, phase, sums);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < kTaps; ++n) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) totals[(n * kVector + i) * blockDim.x + threadIdx.x] = sums[n][i];
  }
  __syncthreads();
  // One thread adds up each value in the order of the walkers; with kVector 1 a warp does, in an order of its own.
  C* const parts = static_cast<C*>(params.parts);
  const int32 taps = across.filter * along.filter;
  const auto write = [&](int32 value, int32 which, int32 column, C total) {
    const Job found = Job::of(params, first_job + which);
    const int32 n = value / kVector, filter = (chunk * params.vectors + column) * kVector + value % kVector;
    if (first_job + which < params.jobs && n < found.count && filter < params.filters) {
      const int32 tap = found.row * along.filter + found.first + n * along.tap_step;
      parts[(part * params.filters + filter) * taps + tap] = total;
    }
  };
  if constexpr (kVector == 1) {
    const int32 warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
    for (int32 i = warp; i < kTaps * jobs; i += warps) {
      C total = 0;
      for (int32 j = threadIdx.x % kWarpSize; j < team; j += kWarpSize) {
        total += totals[i / jobs * blockDim.x + i % jobs * team + j];
      }
      total = reduce_warp<Sum>(total);
      if (threadIdx.x % kWarpSize == 0) write(i / jobs, i % jobs, 0, total);
    }
  } else {
    for (int32 i = threadIdx.x; i < kTaps * kVector * jobs * params.vectors; i += blockDim.x) {
      const int32 column = i % params.vectors, which = i / params.vectors % jobs, value = i / params.vectors / jobs;
      C total = 0;
      for (int32 j = 0; j < params.walkers; ++j) {
        total += totals[value * blockDim.x + which * team + j * params.vectors + column];
      }
      write(value, which, column, total);
    }
  }
}

constexpr int kSumRows = 16;

// Mirrored by _SUM in dnncore/cuda/convolution/depthwise_filter.py.
struct SumParams {
  Blend blend;
  const void* parts;
  void* dw;
  int64 w_filter;
  int64 w_across;
  int64 w_along;
  int64 w_offset;
  int32 across;  // taps
  int32 along;
  int64 outputs;
  int64 num_parts;
};

// The lanes of a warp are neighbouring outputs, and the warps of a block take the parts in turn.
template <typename T>
__device__ void sum_parts(const SumParams& params) {
  using C = Compute<T>;
  __shared__ C totals[kSumRows][kWarpSize];
  const int32 lane = threadIdx.x % kWarpSize, row = threadIdx.x / kWarpSize;
  const int64 output = static_cast<int64>(blockIdx.x) * kWarpSize + lane;
  C sum = 0;
  if (output < params.outputs) {
    const C* const parts = static_cast<const C*>(params.parts) + output;
#pragma unroll 4
    for (int64 part = row; part < params.num_parts; part += kSumRows) sum += parts[part * params.outputs];
  }
  totals[row][lane] = sum;
  __syncthreads();
  if (row != 0 || output >= params.outputs) return;
#pragma unroll
  for (int i = 1; i < kSumRows; ++i) sum += totals[i][lane];
  const QuotientRemainder column = divide(output, static_cast<int64>(params.along));
  const QuotientRemainder filter = divide(column.quotient, static_cast<int64>(params.across));
  T* const dw = static_cast<T*>(params.dw) + params.w_offset + filter.quotient * params.w_filter +
                filter.remainder * params.w_across + column.remainder * params.w_along;
  blend_into(params.blend, sum, dw);
}

}  // namespace dnncore::depthwise
