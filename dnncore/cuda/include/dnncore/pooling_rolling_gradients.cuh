// Gradients of pooling over two spatial dimensions: of maxima from dy and their indices, or from dy and x, where each thread finds the
// maxima of its windows again (pooling_maxima.cuh); of averages from dy. A thread takes kColumns neighbouring columns of dx, of a
// vector of channels (up to 16 bytes) where these are innermost, else of one channel, and walks down the rows of windows. It keeps sums for the rows of dx that a row of windows reaches. Those that no later window reaches are written,
// the others move up.
//
//     row p of windows          rows of dx, windows of 3 x 3, stride 2
//        o     o     o    ->    sums[0]   . . .   complete with the windows of row p
//                         ->    sums[1]   . . .   likewise
//                         ->    sums[2]   . . .   the first row of the windows below: moves to sums[0]
//
// So a thread loads what a window passes on once, however many rows of dx that goes to, and no sum is ever added to in memory.
// Neighbouring threads have the neighbouring vectors of a group of channels, then neighbouring strips, as in pooling_rolling.cuh; of
// planes neighbouring strips, whose columns are stored at once where rows let them. Where rows of planes are whole vectors and nothing is
// looked for in x, a strip is a vector of dx, and what its windows pass on comes by one load, and another of the window beside them.
#pragma once

#include <type_traits>

#include "dnncore/common/factors.cuh"
#include "dnncore/pooling_maxima.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/pooling/rolling_gradients.py. Pairs are (rows, columns). Distances count bytes.
struct RollingGradientsParams {
  Blend blend;
  const void* dy;
  const int32* indices;
  const void* x;
  void* output;
  int64 dy_image;
  int64 indices_image;
  int64 x_image;
  int64 output_image;
  int64 dy_channel;  // from a vector of channels to the next, or from a plane
  int64 indices_channel;
  int64 x_channel;
  int64 output_channel;
  int32 dy_step[2];
  int32 indices_step[2];
  int32 x_step[2];
  int32 output_step[2];
  int32 x_extent[2];
  int32 y_extent[2];
  int32 before[2];
  int32 counted_low[2];  // as in PlanarPoolingParams
  int32 counted_high[2];
  SmallDivisor vectors;  // of a group of channels
  SmallDivisor strips;   // of a row of dx
  SmallDivisor groups;   // of all channels; planes are groups of one
  SmallDivisor walks;    // of an image's rows
  int32 walk;            // steps, at most; each completes kStride rows of dx
  int32 steps;           // of an image
  int32 items;           // walks of strips of vectors of all images
  int32 at_once;         // of planes: every strip is inside, and can be stored at once
  int32 propagates_nan;
};

// What a window passes on, on its way from memory: a vector of dy, and where each of its maxima was.
template <typename T, PoolingMode kMode, int kVector>
struct PassedOn {
  static constexpr int kAtOnce = kVector < 4 ? kVector : 4;
  static constexpr int kWords = kMode == PoolingMode::kIndices ? kVector / kAtOnce : 0;

  Loaded<T, kVector> gradient;
  Loaded<int32, kAtOnce> places[kWords + 1];  // an array needs some extent

  __device__ __forceinline__ void load_if(bool there, const char* dy, const char* indices) {
    gradient.load_if(there, reinterpret_cast<const T*>(dy));
#pragma unroll
    for (int w = 0; w < kWords; ++w) places[w].load_if(there, reinterpret_cast<const int32*>(indices) + kAtOnce * w);
  }
  __device__ __forceinline__ int32 place(int i) const { return reinterpret_cast<const int32*>(&places[i / kAtOnce].word)[i % kAtOnce]; }
};

// What the windows over a strip pass on in a row of them, each by itself.
template <typename T, PoolingMode kMode, int kVector, int kWide>
struct PassedOnAlone {
  PassedOn<T, kMode, kVector> windows[kWide];

  // Of the first window, which may be outside, and how far it is to the next; `inside` has a bit for each.
  __device__ __forceinline__ void load(bool is_row, uint32 inside, const char* dy, int32 dy_column, const char* indices, int32 indices_column) {
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      const bool there = is_row && (inside >> n & 1) != 0;
      windows[n].load_if(there, dy + n * static_cast<int64>(dy_column), indices + n * static_cast<int64>(indices_column));
    }
  }
  __device__ __forceinline__ void gradients(int n, Compute<T> (&values)[kVector]) const { windows[n].gradient.widen_into(values); }
  __device__ __forceinline__ int32 place(int n, int i) const { return windows[n].place(i); }
};

// The same of planes where a strip is a vector of dx: kTogether windows come by one load, and one beside them by another, the first if
// kBefore is 1.
template <typename T, PoolingMode kMode, int kWide, int kTogether, int kBefore>
struct PassedOnTogether {
  static constexpr bool kHasPlaces = kMode == PoolingMode::kIndices, kHasBeside = kWide > kTogether;
  static constexpr int kBeside = kBefore != 0 ? 0 : kTogether;
  static_assert(kWide == kTogether + (kHasBeside ? 1 : 0) && kBefore <= (kHasBeside ? 1 : 0));

  Loaded<T, kTogether> together;
  Loaded<int32, kTogether> places;
  LoadedOne<T> beside;
  LoadedOne<int32> place_beside;

  __device__ __forceinline__ void load(bool is_row, uint32 inside, const char* dy, int32, const char* indices, int32) {
    const T* const gradients = reinterpret_cast<const T*>(dy);
    const int32* const maxima = reinterpret_cast<const int32*>(indices);
    together.load_if(is_row, gradients + kBefore);
    if constexpr (kHasPlaces) places.load_if(is_row, maxima + kBefore);
    if constexpr (kHasBeside) {
      const bool there = is_row && (inside >> kBeside & 1) != 0;
      beside = {};
      beside.load_if(there, gradients + kBeside);
      if constexpr (kHasPlaces) place_beside.load_if(there, maxima + kBeside);
    }
  }
  __device__ __forceinline__ void gradients(int n, Compute<T> (&values)[1]) const {
    values[0] = kHasBeside && n == kBeside ? beside.widened() : widen(reinterpret_cast<const T*>(&together.word)[n - kBefore]);
  }
  __device__ __forceinline__ int32 place(int n, int) const {
    return kHasBeside && n == kBeside ? place_beside.word : reinterpret_cast<const int32*>(&places.word)[n - kBefore];
  }
};

// Of pooling that has nothing to find in x.
struct NoMaxima {
  template <int kRows>
  struct Rows {};
  static constexpr int kKept = 0, kNew = 0;
};

// kVector is 1 for planes. kPhase is where in the stride of windows a strip begins.
template <typename T, PoolingMode kMode, bool kPropagatesNan, bool kOfPlanes, int kWindow, int kStride, int kPhase, int kColumns>
struct RollingGradients {
  static constexpr bool kFinds = kMode == PoolingMode::kMax;
  // Of 16 bytes, or half of that of 16-bit elements whose maxima are found: their registers are many.
  static constexpr int kVector = kOfPlanes ? 1 : kFinds ? 4 : 16 / sizeof(T);
  static constexpr bool kInVectors = kOfPlanes && !kFinds && kColumns * sizeof(T) == 16;  // strips are vectors of dx
  using C = Compute<T>;
  static constexpr int kReach = (kWindow - 1) / kStride;               // rows of windows over a place before its last one
  static constexpr int kBefore = (kWindow - 1 - kPhase) / kStride;     // windows over a strip before that in whose stride it begins
  static constexpr int kWide = (kPhase + kColumns - 1) / kStride + 1 + kBefore;  // windows over a strip, along a row
  static_assert(kColumns % kStride == 0, "strips begin alike");
  using Windows = std::conditional_t<
      kInVectors, PassedOnTogether<T, kMode, kInVectors ? kWide : kColumns / kStride, kColumns / kStride, kInVectors ? kBefore : 0>,
      PassedOnAlone<T, kMode, kVector, kWide>>;
  using Maxima = std::conditional_t<kFinds, StripMaxima<T, kPropagatesNan, kVector, kWindow, kStride, kWide>, NoMaxima>;

  // What a step takes from memory.
  struct Row {
    Windows windows;
    typename Maxima::template Rows<Maxima::kNew> x;
  };

  const RollingGradientsParams& params;
  const Factors<C> factors;
  const char* dy;       // what the strip's first window passes on, in the next row of windows
  const char* indices;  // likewise
  char* output;         // of the strip's first column, in the next row to write
  int32 left;           // the strip's first column of dx, which may lie outside
  int32 window;         // its first window, which may lie outside, too
  uint32 inside;        // a bit for each of its windows that is inside
  int32 step;           // the next one
  int32 begin;          // the first one to write
  int32 end;            // behind the last one
  int64 plane;          // bytes to the strip's channels in x

  __device__ __forceinline__ RollingGradients(const RollingGradientsParams& params, int32 item)
      : params(params), factors(params.blend) {
    const SmallQuotientRemainder vector = divide(item, params.vectors);
    const SmallQuotientRemainder strip = divide(vector.quotient, params.strips);
    const SmallQuotientRemainder group = divide(strip.quotient, params.groups);
    const SmallQuotientRemainder walk = divide(group.quotient, params.walks);
    const int64 image = walk.quotient, channel = group.remainder * params.vectors.value + vector.remainder;
    left = strip.remainder * kColumns - (kOfPlanes ? 0 : params.before[1] % kStride);
    window = (left + params.before[1] - kPhase) / kStride - kBefore;
    inside = 0;
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      inside |= static_cast<uint32>(static_cast<uint32>(window + n) < static_cast<uint32>(params.y_extent[1])) << n;
    }
    begin = walk.remainder * params.walk;
    end = min(begin + params.walk, params.steps);
    step = max(begin - kReach, -first());
    const int64 row = first() + step;
    dy = static_cast<const char*>(params.dy) + image * params.dy_image + channel * params.dy_channel +
         (row * params.dy_step[0] + static_cast<int64>(window) * dy_column());
    indices = reinterpret_cast<const char*>(params.indices);
    if constexpr (kMode == PoolingMode::kIndices) {
      indices += image * params.indices_image + channel * params.indices_channel +
                 (row * params.indices_step[0] + static_cast<int64>(window) * indices_column());
    }
    plane = image * params.x_image + channel * params.x_channel;
    output = static_cast<char*>(params.output) + image * params.output_image + channel * params.output_channel +
             (static_cast<int64>(top_of(begin)) * params.output_step[0] + static_cast<int64>(left) * output_column());
  }

  // Of planes, columns are known to be neighbours.
  __device__ __forceinline__ int32 dy_column() const { return kOfPlanes ? static_cast<int32>(sizeof(T)) : params.dy_step[1]; }
  __device__ __forceinline__ int32 x_column() const { return kOfPlanes ? static_cast<int32>(sizeof(T)) : params.x_step[1]; }
  __device__ __forceinline__ int32 indices_column() const { return kOfPlanes ? static_cast<int32>(sizeof(int32)) : params.indices_step[1]; }
  __device__ __forceinline__ int32 output_column() const { return kOfPlanes ? static_cast<int32>(sizeof(T)) : params.output_step[1]; }

  // The last row of windows over the rows of step 0, and the first row of dx of a step, which may lie outside.
  __device__ __forceinline__ int32 first() const { return params.before[0] / kStride; }
  __device__ __forceinline__ int32 top_of(int32 number) const { return (first() + number) * kStride - params.before[0]; }

  // What finds the maxima of the windows from the next row of them on.
  __device__ __forceinline__ Maxima maxima() const {
    if constexpr (kFinds) {
      return {static_cast<const char*>(params.x) + plane, params.x_step[0], x_column(), params.x_extent[0], params.x_extent[1],
              top_of(step), window * kStride - params.before[1]};
    } else {
      return {};
    }
  }

  // Ask for the windows over the strip in the next row of windows, which a step is for.
  __device__ __forceinline__ void load(Row& row, int32 number, Maxima& maxima) {
    const bool is_row = number < end && static_cast<uint32>(first() + number) < static_cast<uint32>(params.y_extent[0]);
    row.windows.load(is_row, inside, dy, dy_column(), indices, indices_column());
    if constexpr (kFinds) maxima.load(row.x, top_of(number) + Maxima::kKept, is_row);
    dy += params.dy_step[0];
    if constexpr (kMode == PoolingMode::kIndices) indices += params.indices_step[0];
  }

  // One over the places that an average counts along an axis; windows that lie outside pass nothing on.
  __device__ __forceinline__ C share(int axis, int32 position) const {
    const int32 start = position * kStride - params.before[axis];
    const int32 places = min(start + kWindow, params.counted_high[axis]) - max(start, params.counted_low[axis]);
    return places == 3 ? C(1) / 3 : places == 2 ? C(0.5) : C(1);
  }

  // The number that names a place of the strip in `PassedOn` or in `Maxima::Places`. Of a row or a column outside, indices may have it
  // for another place; such sums are not written.
  __device__ __forceinline__ int32 place_of(int32 row, int c) const {
    if constexpr (kFinds) return row * kPlacesOfRow + kPhase + kBefore * kStride + c;
    return static_cast<int32>(static_cast<uint32>(row) * static_cast<uint32>(params.x_extent[1])) + left + c;
  }

  // Add what the windows of a row pass on.
  __device__ __forceinline__ void take(const Row& row, Maxima& maxima, C (&sums)[kWindow][kColumns][kVector]) const {
    const int32 top = top_of(step);
    const auto found = [&] {
      if constexpr (kFinds) return maxima.look(row.x, top);
      else return 0;
    }();
    const auto takes = [&](int n, int i, int32 place) {
      if constexpr (kFinds) return found.at[n][i] == place;
      else return kMode == PoolingMode::kAverage || row.windows.place(n, i) == place;
    };
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      C gradient[kVector];
      row.windows.gradients(n, gradient);
      if constexpr (kMode == PoolingMode::kAverage) {
        const C part = share(0, first() + step) * share(1, window + n);
#pragma unroll
        for (int i = 0; i < kVector; ++i) gradient[i] *= part;
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int s = kPhase + c - (n - kBefore) * kStride;  // column of the window
        if (s < 0 || s >= kWindow) continue;
#pragma unroll
        for (int r = 0; r < kWindow; ++r) {
          const int32 place = place_of(top + r, c);
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            if (takes(n, i, place)) sums[r][c][i] += gradient[i];
          }
        }
      }
    }
  }

  // The next row of dx, if it is one.
  __device__ __forceinline__ void write_row(int32 row, const C (&sums)[kColumns][kVector]) {
    char* const line = output;
    output += params.output_step[0];
    if (static_cast<uint32>(row) >= static_cast<uint32>(params.x_extent[0])) return;
    const auto write_at_once = [&] {
      C values[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) values[c] = sums[c][0];
      factors.blend_into(values, reinterpret_cast<T*>(line));
    };
    if constexpr (kInVectors) {
      write_at_once();
    } else if (kOfPlanes && params.at_once != 0) {
      write_at_once();
    } else {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (static_cast<uint32>(left + c) >= static_cast<uint32>(params.x_extent[1])) continue;
        factors.blend_into(sums[c], reinterpret_cast<T*>(line + c * static_cast<int64>(output_column())));
      }
    }
  }

  __device__ __forceinline__ void roll() {
    C sums[kWindow][kColumns][kVector] = {};
    Maxima found = maxima();
    Row row, next;
    if (kOfPlanes) load(next, step, found);
    for (; step < end; ++step) {
      if constexpr (kOfPlanes) {  // a step's loads are few: those of the next one are under way, too
        row = next;
        load(next, step + 1, found);
      } else {
        load(row, step, found);
      }
      take(row, found, sums);
      if (step >= begin) {
#pragma unroll
        for (int r = 0; r < kStride; ++r) write_row(top_of(step) + r, sums[r]);
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

template <typename T, PoolingMode kMode, bool kPropagatesNan, bool kOfPlanes, int kWindow, int kStride, int kColumns>
__device__ __forceinline__ void roll_gradients(const RollingGradientsParams& params, int32 item) {
  if (kOfPlanes && kStride == 2 && params.before[1] % 2 != 0) {
    RollingGradients<T, kMode, kPropagatesNan, kOfPlanes, kWindow, kStride, kStride - 1, kColumns>(params, item).roll();
  } else {
    RollingGradients<T, kMode, kPropagatesNan, kOfPlanes, kWindow, kStride, 0, kColumns>(params, item).roll();
  }
}

template <typename T, PoolingMode kMode, bool kOfPlanes, int kWindow, int kStride, int kColumns>
__device__ void pooling_rolling_gradients(const RollingGradientsParams& params) {
  const int32 item = static_cast<int32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= params.items) return;
  if (kMode == PoolingMode::kMax && params.propagates_nan != 0) {
    roll_gradients<T, kMode, true, kOfPlanes, kWindow, kStride, kColumns>(params, item);
  } else {
    roll_gradients<T, kMode, false, kOfPlanes, kWindow, kStride, kColumns>(params, item);
  }
}

}  // namespace dnncore
