// Gradients of pooling over two spatial dimensions, channels innermost: of maxima from dy and their indices, of averages from dy.
// A thread takes a vector of channels, 16 bytes, and kColumns neighbouring columns of dx, and walks down the rows of windows. It
// keeps sums for the rows of dx that a row of windows reaches. Those that no later window reaches are written, the others move up.
//
//     row p of windows          rows of dx, windows of 3 x 3, stride 2
//        o     o     o    ->    sums[0]   . . .   complete with the windows of row p
//                         ->    sums[1]   . . .   likewise
//                         ->    sums[2]   . . .   the first row of the windows below: moves to sums[0]
//
// So a thread loads what a window passes on once, however many rows of dx that goes to, and no sum is ever added to in memory.
// Neighbouring threads have the neighbouring vectors of a group of channels, then neighbouring strips, as in pooling_rolling.cuh.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/pooling_mode.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/pooling/rolling_gradients.py. Pairs are (rows, columns). Distances count bytes.
struct RollingGradientsParams {
  Blend blend;
  const void* dy;
  const int32* indices;
  void* output;
  int64 dy_image;
  int64 indices_image;
  int64 output_image;
  int32 dy_step[2];
  int32 indices_step[2];
  int32 output_step[2];
  int32 x_extent[2];
  int32 y_extent[2];
  int32 before[2];
  int32 counted_low[2];  // as in PlanarPoolingParams
  int32 counted_high[2];
  SmallDivisor vectors;  // of a group of channels
  SmallDivisor strips;   // of a row of dx
  SmallDivisor groups;   // of all channels
  SmallDivisor walks;    // of an image's rows
  int32 walk;            // steps, at most; each completes kStride rows of dx
  int32 steps;           // of an image
  int32 items;           // walks of strips of vectors of all images
};

// What a window passes on, on its way from memory: a vector of dy, and where each of its maxima was.
template <typename T, PoolingMode kMode>
struct PassedOn {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kWords = kMode == PoolingMode::kIndices ? kVector / 4 : 0;

  Loaded<T, kVector> gradient;
  Loaded<int32, 4> places[kWords + 1];  // an array needs some extent

  __device__ __forceinline__ void load_if(bool there, const char* dy, const char* indices) {
    gradient.load_if(there, reinterpret_cast<const T*>(dy));
#pragma unroll
    for (int w = 0; w < kWords; ++w) places[w].load_if(there, reinterpret_cast<const int32*>(indices) + 4 * w);
  }
  __device__ __forceinline__ int32 place(int i) const { return reinterpret_cast<const int32*>(&places[i / 4].word)[i % 4]; }
};

template <typename T, PoolingMode kMode, int kWindow, int kStride, int kColumns>
struct RollingGradients {
  using C = Compute<T>;
  using Window = PassedOn<T, kMode>;
  static constexpr int kVector = Window::kVector;
  static constexpr int kReach = (kWindow - 1) / kStride;                  // windows over a place before the last one, along an axis
  static constexpr int kWide = (kColumns - 1) / kStride + 1 + kReach;     // windows over a strip, along a row
  static_assert(kColumns % kStride == 0, "strips begin where windows do");

  const RollingGradientsParams& params;
  const char* dy;        // the vector in row 0 and column 0
  const char* indices;   // likewise
  char* output;          // likewise
  int32 left;            // the strip's first column of dx, which may lie outside
  int32 window;          // the first window over the strip, which may lie outside, too
  int32 begin;           // the first step to write
  int32 end;             // behind the last one

  __device__ __forceinline__ RollingGradients(const RollingGradientsParams& params, int32 item) : params(params) {
    const SmallQuotientRemainder vector = divide(item, params.vectors);
    const SmallQuotientRemainder strip = divide(vector.quotient, params.strips);
    const SmallQuotientRemainder group = divide(strip.quotient, params.groups);
    const SmallQuotientRemainder walk = divide(group.quotient, params.walks);
    const int32 channel = (group.remainder * params.vectors.value + vector.remainder) * kVector;
    dy = static_cast<const char*>(params.dy) + walk.quotient * params.dy_image + channel * static_cast<int32>(sizeof(T));
    indices = reinterpret_cast<const char*>(params.indices);
    if constexpr (kMode == PoolingMode::kIndices) {
      indices += walk.quotient * params.indices_image + channel * static_cast<int32>(sizeof(int32));
    }
    output = static_cast<char*>(params.output) + walk.quotient * params.output_image + channel * static_cast<int32>(sizeof(T));
    left = strip.remainder * kColumns - params.before[1] % kStride;
    window = (left + params.before[1]) / kStride - kReach;
    begin = walk.remainder * params.walk;
    end = min(begin + params.walk, params.steps);
  }

  // Ask for the windows over the strip in row p.
  __device__ __forceinline__ void load(int32 p, Window (&windows)[kWide]) const {
    const bool is_row = static_cast<uint32>(p) < static_cast<uint32>(params.y_extent[0]);
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      const int32 q = window + n;
      const bool there = is_row && static_cast<uint32>(q) < static_cast<uint32>(params.y_extent[1]);
      windows[n].load_if(there, dy + (static_cast<int64>(p) * params.dy_step[0] + static_cast<int64>(q) * params.dy_step[1]),
                         indices + (static_cast<int64>(p) * params.indices_step[0] + static_cast<int64>(q) * params.indices_step[1]));
    }
  }

  // One over the places that an average counts along an axis; windows that lie outside pass nothing on.
  __device__ __forceinline__ C share(int axis, int32 position) const {
    const int32 start = position * kStride - params.before[axis];
    const int32 places = min(start + kWindow, params.counted_high[axis]) - max(start, params.counted_low[axis]);
    return C(1) / static_cast<C>(max(places, 1));
  }

  // Add what the windows of row p pass on.
  __device__ __forceinline__ void take(int32 p, const Window (&windows)[kWide], C (&sums)[kWindow][kColumns][kVector]) const {
    const int32 top = p * kStride - params.before[0];
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      C gradient[kVector];
      windows[n].gradient.widen_into(gradient);
      if constexpr (kMode == PoolingMode::kAverage) {
        const C part = share(0, p) * share(1, window + n);
#pragma unroll
        for (int i = 0; i < kVector; ++i) gradient[i] *= part;
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int s = c - (n - kReach) * kStride;  // column of the window
        if (s < 0 || s >= kWindow) continue;
#pragma unroll
        for (int r = 0; r < kWindow; ++r) {
          // Of a row or a column outside, it may be the number of another place; such sums are not written.
          const int32 place = static_cast<int32>(static_cast<uint32>(top + r) * static_cast<uint32>(params.x_extent[1])) + left + c;
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            if (kMode == PoolingMode::kAverage || windows[n].place(i) == place) sums[r][c][i] += gradient[i];
          }
        }
      }
    }
  }

  // Blend the sums of a row of dx into their places.
  __device__ __forceinline__ void write(int32 row, const C (&sums)[kColumns][kVector]) const {
    if (static_cast<uint32>(row) >= static_cast<uint32>(params.x_extent[0])) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int32 column = left + c;
      if (static_cast<uint32>(column) >= static_cast<uint32>(params.x_extent[1])) continue;
      using Stored = Vector<T, kVector>;
      char* const place = output + (static_cast<int64>(row) * params.output_step[0] + static_cast<int64>(column) * params.output_step[1]);
      Stored vector{};
      if (params.blend.beta != 0.0) vector = *reinterpret_cast<const Stored*>(place);
#pragma unroll
      for (int i = 0; i < kVector; ++i) blend_into(params.blend, sums[c][i], &vector.at[i]);
      *reinterpret_cast<Stored*>(place) = vector;
    }
  }

  __device__ __forceinline__ void roll() const {
    C sums[kWindow][kColumns][kVector] = {};
    const int32 first = params.before[0] / kStride;  // the last row of windows over the rows of step 0
    for (int32 step = max(begin - kReach, -first); step < end; ++step) {
      Window windows[kWide];
      load(first + step, windows);
      take(first + step, windows, sums);
#pragma unroll
      for (int r = 0; r < kStride; ++r) {
        if (step >= begin) write((first + step) * kStride - params.before[0] + r, sums[r]);
      }
#pragma unroll
      for (int r = 0; r < kWindow; ++r) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) sums[r][c][i] = r + kStride < kWindow ? sums[r + kStride][c][i] : C(0);
        }
      }
    }
  }
};

template <typename T, PoolingMode kMode, int kWindow, int kStride, int kColumns>
__device__ void pooling_rolling_gradients(const RollingGradientsParams& params) {
  const int32 item = static_cast<int32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item < params.items) RollingGradients<T, kMode, kWindow, kStride, kColumns>(params, item).roll();
}

}  // namespace dnncore
