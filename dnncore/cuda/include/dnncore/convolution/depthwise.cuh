// Depthwise convolution, forward and backward-data: one channel per group, and `multiplier` filters for it.
//
//    y[n, k, p] = sum over r  x[n, k / multiplier, p * stride - padding + r * dilation] * w[k, r]
//
// It is memory-bound: each element should come from memory once and seldom from the caches. A thread computes kOutputs
// outputs along one axis, "along", for kVector channels; the other axis is "across". With channels innermost, a thread
// takes a vector of them, strips lie along the width, and a block walks down the rows, whose neighbours are then still
// in its L1 cache, while the filters wait in shared memory. Otherwise kVector is 1, strides may be any, the threads of
// a warp are neighbours across (the width), and strips lie along the height.
//
// Along a strip an element of the source meets several outputs through several taps. Outputs that lie `spacing` apart
// and every tap_step-th tap meet places of the source that are evenly spaced, so that the n-th output and the t-th tap
// share place n + t: what a thread has read stays in its registers for the next tap, whatever the stride and dilation
// are.
//
//    place        0   1   2   3   4   5
//    tap t = 0    o0  o1  o2  o3                          o_n is the n-th output of a strip with kOutputs = 4
//    tap t = 1        o0  o1  o2  o3                      one more place is read per tap
//    tap t = 2            o0  o1  o2  o3
//
//    forward        outputs dilation / gcd apart, places lcm apart,             gcd and lcm of stride and dilation
//    backward-data  outputs lcm apart,            places dilation / gcd apart,  the taps from last to first
//
// Forward, a filter that is not finite shows at the border, where it meets the padding's zeros, as in PyTorch.
// Backward, it also spreads along a strip to places that only the padding of its tap reaches.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/convolution/finish.cuh"

namespace dnncore::depthwise {

// One axis; mirrored by AXIS in dnncore/cuda/convolution/depthwise_plane.py. The source is what is read, x or dy.
struct Axis {
  int32 source;         // extents
  int32 output;
  int32 filter;
  int32 padding;
  int32 stride;
  int32 dilation;
  int32 tap_step;       // stride / gcd
  int32 taps_a_class;   // filter / tap_step, rounded down
  int32 longer_classes; // of the classes of every tap_step-th tap, the first so many have one more
  int32 place_step;     // dilation / gcd
  int32 common;         // lcm
  int32 source_stride;  // elements
  int32 output_stride;
  int32 filter_stride;  // negative for true convolution
};

// Mirrored by _PARAMS in dnncore/cuda/convolution/depthwise.py.
struct DataParams {
  Blend blend;
  Epilogue epilogue;        // of a fused convolution
  const void* source;
  const void* w;
  void* output;
  int64 source_image;
  int64 source_channel;
  int64 output_image;
  int64 output_channel;
  int64 w_filter;
  int64 w_offset;           // elements from w's address to its tap 0
  Axis along;
  Axis across;
  Divisor strips;           // of one channel of one image, at one place across
  Divisor across_places;
  Divisor channels;         // of the output
  SmallDivisor multiplier;  // filters per channel
  int64 count;              // strips of all images; with kVector 1, of all channels and places across too
  int32 backward;
  int32 chunks;             // blocks take vectors of channels in chunks of `vectors`, a power of two
  int32 vectors;
  int32 groups;             // groups of strips, of which a block takes one
  int32 rows;               // places across that a block walks over
  int32 channels_innermost;
};

// The taps of one axis that meet an output, in an order in which their places in the source ascend or descend evenly.
struct Taps {
  int32 first;
  int32 step;
  int32 count;
  int32 place;  // of the first tap
};

__device__ __forceinline__ int32 taps_of_class(const Axis& axis, int32 first) {
  return axis.taps_a_class + (first < axis.longer_classes);
}

// The n-th of places that lie `step_bytes` apart: one multiply-add per place.
template <typename T>
__device__ __forceinline__ const T* nth_place(const T* first, int32 n, int32 step_bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + static_cast<int64>(n) * step_bytes);
}

// Backward: the taps that meet place `at`, from last to first; their places lie `place_step` apart.
__device__ __forceinline__ Taps backward_taps(const Axis& axis, int32 at) {
  const int32 period = min(axis.tap_step, axis.filter);
  for (int32 tap = 0; tap < period; ++tap) {
    if ((at + axis.padding - tap * axis.dilation) % axis.stride == 0) {
      const int32 count = taps_of_class(axis, tap);
      const int32 last = tap + (count - 1) * axis.tap_step;
      return {last, -axis.tap_step, count, (at + axis.padding - last * axis.dilation) / axis.stride};
    }
  }
  return {0, 0, 0, 0};
}

// Forward: every tap_step-th tap from `first` on; their places lie `common` apart.
__device__ __forceinline__ Taps forward_taps(const Axis& axis, int32 at, int32 first) {
  return {first, axis.tap_step, taps_of_class(axis, first), at * axis.stride - axis.padding + first * axis.dilation};
}

// A row of one channel's filter, in memory.
template <typename T>
struct StoredRow {
  const T* row;
  int32 stride;

  struct Weight {
    T stored;
  };
  __device__ __forceinline__ Weight fetch(int32 tap) const { return {row[tap * stride]}; }
  __device__ __forceinline__ void widen_into(const Weight& weight, Compute<T> (&values)[1]) const {
    values[0] = widen(weight.stored);
  }
};

// Rows of the filters of neighbouring channels, in shared memory.
template <typename C, int kVector>
struct SharedRow {
  const C* row;
  int32 stride;

  struct Weight {
    const C* place;
  };
  __device__ __forceinline__ Weight fetch(int32 tap) const { return {row + tap * stride}; }
  __device__ __forceinline__ void widen_into(const Weight& weight, C (&values)[kVector]) const {
    const auto vector = *reinterpret_cast<const Vector<C, kVector>*>(weight.place);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = vector.at[i];
  }
};

// Add what one row of taps contributes to a strip. Loads for up to kOutputs taps are under way at once.
template <typename T, int kVector, int kOutputs, typename Row>
__device__ __forceinline__ void add_row(
    const T* row, const Axis& axis, const Taps& taps, int32 place_step, bool inside, const Row& filter,
    Compute<T> (&sums)[kOutputs][kVector]) {
  Compute<T> values[2 * kOutputs - 1][kVector] = {};
  const int32 step_bytes = place_step * axis.source_stride * static_cast<int32>(sizeof(T));
  const uint32 source = inside ? axis.source : 0;
  const T* next = row + static_cast<int64>(taps.place) * axis.source_stride;
  int32 place = taps.place, tap = taps.first;
  const auto load = [&](Loaded<T, kVector>& into, int32 n) {
    into.load_if(static_cast<uint32>(place + n * place_step) < source, nth_place(next, n, step_bytes));
  };
  Loaded<T, kVector> early[kOutputs - 1];
#pragma unroll
  for (int n = 0; n < kOutputs - 1; ++n) load(early[n], n);
  for (int32 first = 0; first < taps.count; first += kOutputs) {
    Loaded<T, kVector> loaded[kOutputs];
    typename Row::Weight weights[kOutputs];
#pragma unroll
    for (int t = 0; t < kOutputs; ++t) {
      if (first + t >= taps.count) break;
      load(loaded[t], kOutputs - 1 + t);
      weights[t] = filter.fetch(tap + t * taps.step);
    }
    if (first == 0) {
#pragma unroll
      for (int n = 0; n < kOutputs - 1; ++n) early[n].widen_into(values[n]);
    }
#pragma unroll
    for (int t = 0; t < kOutputs; ++t) {
      if (first + t >= taps.count) break;
      Compute<T> weight[kVector];
      filter.widen_into(weights[t], weight);
      loaded[t].widen_into(values[kOutputs - 1 + t]);
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[n][i] += weight[i] * values[n + t][i];
      }
    }
#pragma unroll
    for (int n = 0; n < kOutputs - 1; ++n) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[n][i] = values[n + kOutputs][i];
    }
    tap += kOutputs * taps.step;
    place += kOutputs * place_step;
    next = nth_place(next, kOutputs, step_bytes);
  }
}

// The same for a number of taps that the compiler knows: all loads are under way at once, and nothing is carried from
// tap to tap.
template <int kCount, typename T, int kVector, int kOutputs, typename Row>
__device__ __forceinline__ void add_row_of(
    const T* row, const Axis& axis, const Taps& taps, int32 place_step, bool inside, const Row& filter,
    Compute<T> (&sums)[kOutputs][kVector]) {
  constexpr int kPlaces = kOutputs + kCount - 1;
  const int32 step_bytes = place_step * axis.source_stride * static_cast<int32>(sizeof(T));
  const uint32 source = inside ? axis.source : 0;
  const T* const first = row + static_cast<int64>(taps.place) * axis.source_stride;
  Loaded<T, kVector> loaded[kPlaces];
#pragma unroll
  for (int n = 0; n < kPlaces; ++n) {
    loaded[n].load_if(static_cast<uint32>(taps.place + n * place_step) < source, nth_place(first, n, step_bytes));
  }
  typename Row::Weight weights[kCount];
#pragma unroll
  for (int t = 0; t < kCount; ++t) weights[t] = filter.fetch(taps.first + t * taps.step);
  Compute<T> values[kPlaces][kVector];
#pragma unroll
  for (int n = 0; n < kPlaces; ++n) loaded[n].widen_into(values[n]);
#pragma unroll
  for (int t = 0; t < kCount; ++t) {
    Compute<T> weight[kVector];
    filter.widen_into(weights[t], weight);
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums[n][i] += weight[i] * values[n + t][i];
    }
  }
}

// Add what all taps contribute to the strip that starts at `start`, at place `at` across. filter_row(tap) returns a row
// of the filter.
template <typename T, int kVector, int kOutputs, typename FilterRow>
__device__ __forceinline__ void add_strip(
    const T* source, const DataParams& params, int32 start, int32 at, FilterRow filter_row,
    Compute<T> (&sums)[kOutputs][kVector]) {
  const Axis &along = params.along, &across = params.across;
  const bool backward = params.backward;
  const Taps rows = backward ? backward_taps(across, at)
                             : Taps{0, 1, across.filter, at * across.stride - across.padding};
  const int32 row_step = backward ? across.place_step : across.dilation;
  const int32 place_step = backward ? along.place_step : along.common;
  const int32 classes = backward ? 1 : min(along.tap_step, along.filter);
  Taps taps = backward ? backward_taps(along, start) : Taps{};
  for (int32 i = 0; i < rows.count; ++i) {
    const int32 place = rows.place + i * row_step;
    const bool inside = static_cast<uint32>(place) < static_cast<uint32>(across.source);
    if (backward && !inside) continue;
    const T* const row = source + static_cast<int64>(place) * across.source_stride;
    const auto filter = filter_row(rows.first + i * rows.step);
    for (int32 first = 0; first < classes; ++first) {
      if (!backward) taps = forward_taps(along, start, first);
      switch (taps.count) {
        case 0: break;
        case 1: add_row_of<1>(row, along, taps, place_step, inside, filter, sums); break;
        case 2: add_row_of<2>(row, along, taps, place_step, inside, filter, sums); break;
        case 3: add_row_of<3>(row, along, taps, place_step, inside, filter, sums); break;
        case 5: add_row_of<5>(row, along, taps, place_step, inside, filter, sums); break;
        default: add_row(row, along, taps, place_step, inside, filter, sums);
      }
    }
  }
}

__device__ __forceinline__ int32 spacing_of(const DataParams& params) {
  return params.backward ? params.along.common : params.along.place_step;
}

// The first output of a strip.
template <int kOutputs>
__device__ __forceinline__ int32 strip_start(int32 strip, int32 spacing) {
  return strip / spacing * (spacing * kOutputs) + strip % spacing;
}

// A residual lies as the output does.
template <typename T, int kVector, int kOutputs>
__device__ __forceinline__ void write_strip(
    const DataParams& params, T* output, int32 channel, int32 start, Compute<T> (&sums)[kOutputs][kVector]) {
  using Stored = Vector<T, kVector>;
  const int32 spacing = spacing_of(params);
  if (params.epilogue.is_present) {
    const T* const z = static_cast<const T*>(params.epilogue.z) + (output - static_cast<T*>(params.output));
    const auto residual = [&](int i) {
      const int32 place = start + i / kVector * spacing;
      const T* const from = z + static_cast<int64>(place) * params.along.output_stride + i % kVector;
      return place < params.along.output ? widen(*from) : Compute<T>(0);
    };
    finish<T, kVector>(
        params.epilogue, channel, residual, reinterpret_cast<Compute<T>(&)[kOutputs * kVector]>(sums));
  }
#pragma unroll
  for (int n = 0; n < kOutputs; ++n) {
    const int32 place = start + n * spacing;
    if (place >= params.along.output) break;
    T* const target = output + static_cast<int64>(place) * params.along.output_stride;
    Stored vector{};
    if (params.blend.beta != 0.0) vector = *reinterpret_cast<const Stored*>(target);
#pragma unroll
    for (int i = 0; i < kVector; ++i) blend_into(params.blend, sums[n][i], &vector.at[i]);
    *reinterpret_cast<Stored*>(target) = vector;
  }
}

// A thread takes one strip of one channel; neighbouring threads are neighbours across, or have neighbouring channels
// where those are innermost.
template <typename T, int kOutputs>
__device__ void strips_of_places(const DataParams& params) {
  for (int64 item = grid_index(); item < params.count; item += grid_size()) {
    const QuotientRemainder inner = divide(item, params.channels_innermost ? params.channels : params.across_places);
    const QuotientRemainder strips = divide(inner.quotient, params.strips);
    const QuotientRemainder outer =
        divide(strips.quotient, params.channels_innermost ? params.across_places : params.channels);
    const int32 at = static_cast<int32>(params.channels_innermost ? outer.remainder : inner.remainder);
    const int32 channel = static_cast<int32>(params.channels_innermost ? inner.remainder : outer.remainder);
    const int32 start = strip_start<kOutputs>(static_cast<int32>(strips.remainder), spacing_of(params));
    const int32 filters = params.backward ? params.multiplier.value : 1;
    const T* const source = static_cast<const T*>(params.source) + outer.quotient * params.source_image;

    Compute<T> sums[kOutputs][1] = {};
    for (int32 nth = 0; nth < filters; ++nth) {
      const int32 k = params.backward ? channel * filters + nth : channel;
      const int32 c = params.backward ? k : divide(k, params.multiplier).quotient;
      const T* const w = static_cast<const T*>(params.w) + params.w_offset + k * params.w_filter;
      add_strip<T, 1, kOutputs>(
          source + c * params.source_channel, params, start, at,
          [&](int32 tap) {
            return StoredRow<T>{w + tap * params.across.filter_stride, params.along.filter_stride};
          },
          sums);
    }
    T* const output = static_cast<T*>(params.output) + outer.quotient * params.output_image +
                      channel * params.output_channel + at * static_cast<int64>(params.across.output_stride);
    write_strip<T, 1, kOutputs>(params, output, channel, start, sums);
  }
}

// A thread takes a strip of kVector channels at one place across after another. Channels are innermost in source and
// output, their number is a multiple of kVector, each has one filter, and all strides and addresses are aligned for
// vectors.
template <typename T, int kVector, int kOutputs>
__device__ void strips_of_channels(const DataParams& params) {
  using C = Compute<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  C* const weights = reinterpret_cast<C*>(shared);  // [across][along][chunk's channels]
  const int32 chunk = blockIdx.x % params.chunks, group = blockIdx.x / params.chunks % params.groups;
  const int32 first_row = blockIdx.x / params.chunks / params.groups * params.rows;
  const int32 channels = static_cast<int32>(params.channels.value), width = params.vectors * kVector;
  const Axis &along = params.along, &across = params.across;

  for (int32 i = threadIdx.x; i < across.filter * along.filter * width; i += blockDim.x) {
    const int32 channel = chunk * width + i % width, row = i / width / along.filter, column = i / width % along.filter;
    const T* const w = static_cast<const T*>(params.w) + params.w_offset + channel * params.w_filter;
    weights[i] = channel < channels ? widen(w[row * across.filter_stride + column * along.filter_stride]) : C(0);
  }
  __syncthreads();

  const int32 lane = threadIdx.x % params.vectors, channel = chunk * width + lane * kVector;
  const int64 item = static_cast<int64>(group) * (blockDim.x / params.vectors) + threadIdx.x / params.vectors;
  if (channel >= channels || item >= params.count) return;
  const QuotientRemainder image = divide(item, params.strips);
  const int32 start = strip_start<kOutputs>(static_cast<int32>(image.remainder), spacing_of(params));
  const int32 end = min(first_row + params.rows, across.output);
  const T* const source = static_cast<const T*>(params.source) + image.quotient * params.source_image + channel;
  T* const output = static_cast<T*>(params.output) + image.quotient * params.output_image + channel;
  for (int32 at = first_row; at < end; ++at) {
    C sums[kOutputs][kVector] = {};
    add_strip<T, kVector, kOutputs>(
        source, params, start, at,
        [&](int32 tap) {
          return SharedRow<C, kVector>{weights + tap * along.filter * width + lane * kVector, width};
        },
        sums);
    write_strip<T, kVector, kOutputs>(
        params, output + at * static_cast<int64>(across.output_stride), channel, start, sums);
  }
}

}  // namespace dnncore::depthwise
