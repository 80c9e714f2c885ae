// Pooling forward over two spatial dimensions, channels innermost. A thread takes a vector of channels, 16 bytes, and a
// few neighbouring outputs of a row, whose windows share most of what they look at. For the windows that networks use
// all loads of a strip are under way at once; neighbouring threads have neighbouring channels, then neighbouring strips.
//
//    window 3 x 3, stride 1        . . . . . .
//                                  . o o o o .      18 loads for 4 outputs, 36 if each read its own window
//                                  . . . . . .
//
// A maximum's place is its number in the plane, kept beside it, where indices are wanted.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/pooling_mode.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/pooling/channels.py. Pairs are (rows, columns), strides count elements.
struct ChannelPoolingParams {
  Blend blend;
  const void* x;
  void* output;
  int32* indices;
  int64 x_image;
  int64 output_image;
  int64 indices_image;
  int32 x_step[2];
  int32 output_step[2];
  int32 indices_step[2];
  int32 x_extent[2];
  int32 y_extent[2];
  int32 window[2];
  int32 stride[2];
  int32 before[2];
  int32 counted_low[2];  // as in PlanarPoolingParams
  int32 counted_high[2];
  SmallDivisor vectors;  // of channels
  SmallDivisor strips;   // of a row of outputs
  SmallDivisor rows;     // of outputs, in an image
  int32 items;           // strips of vectors of all images
  int32 propagates_nan;
};

// What is known of a strip's windows so far.
template <typename T, PoolingMode kMode, int kColumns>
struct Pooled {
  using C = Compute<T>;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr bool kIsMax = kMode != PoolingMode::kAverage;
  static constexpr bool kKeepsPlaces = kMode == PoolingMode::kIndices;
  static constexpr C kOutside = kIsMax ? -C(INFINITY) : C(0);

  C at[kColumns][kVector];
  int32 places[kKeepsPlaces ? kColumns : 1][kVector];  // of the maxima, in the plane
  bool propagates_nan;

  __device__ __forceinline__ explicit Pooled(const ChannelPoolingParams& params) : propagates_nan(params.propagates_nan) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) at[n][i] = kOutside;
    }
  }

  // The maximum of a window of minus infinities: its first place inside.
  __device__ __forceinline__ void begin_at(int n, int32 place) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) places[n][i] = place;
  }

  __device__ __forceinline__ void take(int n, const C (&values)[kVector], int32 place) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const C value = values[i];
      if constexpr (kKeepsPlaces) {
        const bool is_larger = exceeds(value, at[n][i], propagates_nan);
        at[n][i] = is_larger ? value : at[n][i];
        places[n][i] = is_larger ? place : places[n][i];
      } else if constexpr (kIsMax) {
        if (value > at[n][i] || (propagates_nan && value != value)) at[n][i] = value;
      } else {
        at[n][i] += value;
      }
    }
  }

  // Blend the n-th output into its place.
  __device__ __forceinline__ void write(const ChannelPoolingParams& params, int n, int top, int left, T* place) const {
    C divisor = 1;
    if constexpr (!kIsMax) {
      const int first[2] = {top, left};
      int places = 1;
#pragma unroll
      for (int axis = 0; axis < 2; ++axis) {
        const int past = min(first[axis] + params.window[axis], params.counted_high[axis]);
        places *= past - max(first[axis], params.counted_low[axis]);
      }
      divisor = static_cast<C>(places);
    }
    using Stored = Vector<T, kVector>;
    Stored vector{};
    if (params.blend.beta != 0.0) vector = *reinterpret_cast<const Stored*>(place);
#pragma unroll
    for (int i = 0; i < kVector; ++i) blend_into(params.blend, kIsMax ? at[n][i] : at[n][i] / divisor, &vector.at[i]);
    *reinterpret_cast<Stored*>(place) = vector;
  }

  __device__ __forceinline__ void write_places(int n, int32* place) const {
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      *reinterpret_cast<int4*>(place + i) = {places[n][i], places[n][i + 1], places[n][i + 2], places[n][i + 3]};
    }
  }
};

// A strip of kColumns outputs with windows of kWindow x kWindow; or one output, and windows of any extent, where that
// is 0.
template <typename T, PoolingMode kMode, int kWindow, int kStride, int kColumns>
__device__ __forceinline__ void pool_strip(const ChannelPoolingParams& params) {
  using C = Compute<T>;
  using Outputs = Pooled<T, kMode, kColumns>;
  constexpr int kVector = Outputs::kVector;
  const int32 item = static_cast<int32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= params.items) return;
  const SmallQuotientRemainder vector = divide(item, params.vectors);
  const SmallQuotientRemainder strip = divide(vector.quotient, params.strips);
  const SmallQuotientRemainder row = divide(strip.quotient, params.rows);
  const int32 channel = vector.remainder * kVector, first = strip.remainder * kColumns;
  const int32 top = row.remainder * params.stride[0] - params.before[0];
  const int32 left = first * params.stride[1] - params.before[1];
  const T* const x = static_cast<const T*>(params.x) + row.quotient * params.x_image + channel;
  const auto is_inside = [&](int r, int s) {
    return static_cast<uint32>(top + r) < static_cast<uint32>(params.x_extent[0]) &&
           static_cast<uint32>(left + s) < static_cast<uint32>(params.x_extent[1]);
  };
  const auto place_of = [&](int r, int s) {
    return x + (static_cast<int64>(top + r) * params.x_step[0] + static_cast<int64>(left + s) * params.x_step[1]);
  };
  const auto number_of = [&](int r, int s) { return (top + r) * params.x_extent[1] + left + s; };
  Outputs outputs(params);
  if constexpr (Outputs::kKeepsPlaces) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      outputs.begin_at(n, max(top, 0) * params.x_extent[1] + max(left + n * params.stride[1], 0));
    }
  }
  if constexpr (kWindow != 0) {
    constexpr int kWide = (kColumns - 1) * kStride + kWindow;
    Loaded<T, kVector> loaded[kWindow][kWide];
#pragma unroll
    for (int r = 0; r < kWindow; ++r) {
#pragma unroll
      for (int s = 0; s < kWide; ++s) loaded[r][s].load_if(is_inside(r, s), place_of(r, s));
    }
#pragma unroll
    for (int r = 0; r < kWindow; ++r) {
#pragma unroll
      for (int s = 0; s < kWide; ++s) {
        C values[kVector];
        loaded[r][s].widen_into(values);
        if (!is_inside(r, s)) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) values[i] = Outputs::kOutside;
        }
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          if (s >= n * kStride && s < n * kStride + kWindow) outputs.take(n, values, number_of(r, s));
        }
      }
    }
  } else {
    constexpr int kAtOnce = 8;  // loads under way: all of a row of a 7 x 7 window
    const int last = min(params.window[1], params.x_extent[1] - left);
    for (int r = max(-top, 0); r < min(params.window[0], params.x_extent[0] - top); ++r) {
      for (int s = max(-left, 0); s < last; s += kAtOnce) {
        Loaded<T, kVector> loaded[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) loaded[i].load_if(s + i < last, place_of(r, s + i));
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          C values[kVector];
          loaded[i].widen_into(values);
          if (s + i < last) outputs.take(0, values, number_of(r, s + i));
        }
      }
    }
  }
  T* const output = static_cast<T*>(params.output) + row.quotient * params.output_image + channel +
                    static_cast<int64>(row.remainder) * params.output_step[0];
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int32 column = first + n;
    if (column >= params.y_extent[1]) break;
    outputs.write(params, n, top, left + n * params.stride[1], output + static_cast<int64>(column) * params.output_step[1]);
    if constexpr (Outputs::kKeepsPlaces) {
      const int64 place = static_cast<int64>(row.remainder) * params.indices_step[0] + static_cast<int64>(column) * params.indices_step[1];
      outputs.write_places(n, params.indices + row.quotient * params.indices_image + channel + place);
    }
  }
}

// The widths of strips are those of _STRIPS in dnncore/cuda/pooling/channels.py.
template <typename T, PoolingMode kMode>
__device__ void pooling_channels(const ChannelPoolingParams& params) {
  const auto is = [&](int window, int stride) {
    return params.window[0] == window && params.window[1] == window && params.stride[0] == stride && params.stride[1] == stride;
  };
  if (is(3, 1)) {
    pool_strip<T, kMode, 3, 1, 4>(params);
  } else if (is(3, 2)) {
    pool_strip<T, kMode, 3, 2, 2>(params);
  } else if (is(2, 2)) {
    pool_strip<T, kMode, 2, 2, 2>(params);
  } else {
    pool_strip<T, kMode, 0, 0, 1>(params);
  }
}

}  // namespace dnncore
