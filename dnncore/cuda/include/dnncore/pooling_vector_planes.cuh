// Pooling forward over planes by windows of 2 x 2 and 3 x 3 with stride 2, whose rows are whole vectors of 16 bytes. As in
// pooling_rolling_planes.cuh a thread walks down the rows of a strip, but its strip is a vector of x: a row of it comes by one load, and
// for windows of 3 x 3 by another one of the element beside it. In 16 bits what walks read element by element is bound by instructions.
//
//    window 3, padding 1      h [0 1 2 3 4 5 6 7]        outputs (h 0 1) (1 2 3) (3 4 5) (5 6 7)
//    window 3, padding 0        [0 1 2 3 4 5 6 7] h              (0 1 2) (2 3 4) (4 5 6) (6 7 h)
//    window 2                   [0 1 2 3 4 5 6 7]                (0 1) (2 3) (4 5) (6 7)
//
// Maxima of 16 bits stay packed: one instruction takes those of two outputs.
#pragma once

#include "dnncore/pooling_pairs.cuh"
#include "dnncore/pooling_rolling_planes.cuh"

namespace dnncore {

template <typename T>
constexpr int kStripColumns = 16 / sizeof(T);  // of x; VECTOR_BYTES in dnncore/cuda/pooling/vectors.py
template <typename T>
constexpr int kStripOutputs = kStripColumns<T> / 2;

// A strip's elements in a row of x.
template <typename T>
struct StripRow {
  Loaded<T, kStripColumns<T>> vector;
  LoadedOne<T> beside;
};

// What a strip's windows have in one row of x, or in several: each by itself.
template <typename T, PoolingMode kMode, bool kPropagatesNan, int kWindow, int kBefore>
struct SeparateWindows {
  using C = Compute<T>;
  using Part = InWindow<T, kMode, kPropagatesNan>;
  static constexpr int kOutputs = kStripOutputs<T>, kColumns = kStripColumns<T>;
  Part at[kOutputs];

  // `place` is that of the strip's first column, counted in the plane.
  __device__ __forceinline__ static SeparateWindows across(const StripRow<T>& row, int32 place) {
    C values[kColumns + 1], inside[kColumns];
    row.vector.widen_into(inside);
#pragma unroll
    for (int s = 0; s < kColumns; ++s) values[s + kBefore] = inside[s];
    values[kBefore != 0 ? 0 : kColumns] = row.beside.widened();
    SeparateWindows found;
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      found.at[n] = Part::nothing();  // which NaN that does not count leaves as it is
#pragma unroll
      for (int s = 0; s < kWindow; ++s) found.at[n].join({values[2 * n + s], place + 2 * n + s - kBefore});
    }
    return found;
  }
  // With rows that come behind its own.
  __device__ __forceinline__ void join(const SeparateWindows& next) {
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) at[n].join(next.at[n]);
  }
  __device__ __forceinline__ void take(C (&values)[kOutputs]) const {
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) values[n] = at[n].value;
  }
};

// The same of maxima in 16 bits, two in a word.
template <typename T, bool kPropagatesNan, int kWindow, int kBefore>
struct PairedWindows {
  using C = Compute<T>;
  static constexpr int kOutputs = kStripOutputs<T>, kPairs = kOutputs / 2;
  static constexpr uint32 kLow = 0x5410, kHigh = 0x7632;  // of the halves of two words, for __byte_perm
  uint32 at[kPairs];

  __device__ __forceinline__ static uint32 larger(uint32 a, uint32 b) { return larger_pair<kPropagatesNan>(T{}, a, b); }

  __device__ __forceinline__ static PairedWindows across(const StripRow<T>& row, int32) {
    const uint32 words[] = {row.vector.word.x, row.vector.word.y, row.vector.word.z, row.vector.word.w};
    const uint32 beside = static_cast<uint32>(row.beside.word) << (kBefore != 0 ? 16 : 0);
    PairedWindows found;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32 first = words[2 * i], second = words[2 * i + 1];
      found.at[i] = larger(__byte_perm(first, second, kLow), __byte_perm(first, second, kHigh));
      if constexpr (kWindow == 3 && kBefore != 0) {
        found.at[i] = larger(__byte_perm(i == 0 ? beside : words[2 * i - 1], first, kHigh), found.at[i]);
      } else if constexpr (kWindow == 3) {
        found.at[i] = larger(found.at[i], __byte_perm(second, i + 1 == kPairs ? beside : words[2 * i + 2], kLow));
      }
    }
    return found;
  }
  __device__ __forceinline__ void join(const PairedWindows& next) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) at[i] = larger(at[i], next.at[i]);
  }
  __device__ __forceinline__ void take(C (&values)[kOutputs]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Vector<T, 2> pair = __builtin_bit_cast(Vector<T, 2>, kPropagatesNan ? at[i] : larger(at[i], kLeastPair<T>));
#pragma unroll
      for (int n = 0; n < 2; ++n) values[2 * i + n] = widen(pair.at[n]);
    }
  }
};

template <typename T, PoolingMode kMode, bool kPropagatesNan, int kWindow, int kBefore>
struct VectorPlanes {
  using C = Compute<T>;
  static constexpr bool kIsPaired = sizeof(T) == 2 && kMode == PoolingMode::kMax;
  static constexpr bool kKeepsPlaces = kMode == PoolingMode::kIndices;
  static constexpr int kColumns = kStripColumns<T>, kOutputs = kStripOutputs<T>, kStride = 2;
  static constexpr int kKept = kWindow - kStride;  // rows of x that the next windows see, too
  using Windows = std::conditional_t<
      kIsPaired, PairedWindows<T, kPropagatesNan, kWindow, kBefore>, SeparateWindows<T, kMode, kPropagatesNan, kWindow, kBefore>>;

  const RollingPlanesParams& params;
  const T* x;        // of the strip's vector, in the next row to load
  T* output;         // of its first column, in the next row to write
  int32* indices;    // likewise
  bool has_beside;
  int32 first;       // column of outputs
  int32 row;         // of x: the next one to load
  int32 begin;
  int32 end;

  __device__ __forceinline__ VectorPlanes(const RollingPlanesParams& params, int32 item) : params(params) {
    const SmallQuotientRemainder strip = divide(item, params.strips);
    const SmallQuotientRemainder channel = divide(strip.quotient, params.channels);
    const SmallQuotientRemainder walk = divide(channel.quotient, params.walks);
    const int64 image = walk.quotient;
    first = strip.remainder * kOutputs;
    const int32 column = first * kStride;
    has_beside = kWindow == 3 && static_cast<uint32>(column + beside()) < static_cast<uint32>(params.x_extent[1]);
    begin = walk.remainder * params.walk;
    end = min(begin + params.walk, params.y_extent[0]);
    row = begin * kStride - params.before[0];
    x = static_cast<const T*>(params.x) + image * params.x_plane[0] + channel.remainder * params.x_plane[1] +
        (static_cast<int64>(row) * params.x_row + column);
    output = static_cast<T*>(params.output) + image * params.output_plane[0] + channel.remainder * params.output_plane[1] +
             (static_cast<int64>(begin) * params.output_row + first);
    indices = params.indices;
    if constexpr (kKeepsPlaces) {
      indices += image * params.indices_plane[0] + channel.remainder * params.indices_plane[1] +
                 (static_cast<int64>(begin) * params.indices_row + first);
    }
  }

  __device__ __forceinline__ static constexpr int beside() { return kBefore != 0 ? -1 : kColumns; }

  // Ask for the next row of x, if it is wanted.
  __device__ __forceinline__ void load(StripRow<T>& found, int32 from, bool wanted = true) {
    const T nothing = narrow<T>(InWindow<T, kMode, kPropagatesNan>::nothing().value);
    const bool is_row = wanted && static_cast<uint32>(from) < static_cast<uint32>(params.x_extent[0]);
    Vector<T, kColumns> outside;
#pragma unroll
    for (int s = 0; s < kColumns; ++s) outside.at[s] = nothing;
    found.vector.word = __builtin_bit_cast(decltype(found.vector.word), outside);
    found.beside = LoadedOne<T>::of(nothing);
    if (is_row) found.vector.word = *reinterpret_cast<const decltype(found.vector.word)*>(x);
    if constexpr (kWindow == 3) found.beside.load_if(is_row && has_beside, x + beside());
    x += params.x_row;
  }

  __device__ __forceinline__ Windows across(const StripRow<T>& found, int32 at_row) const {
    return Windows::across(found, at_row * params.x_extent[1] + first * kStride);
  }

  // The places that an average counts along an axis.
  __device__ __forceinline__ int32 counted(int axis, int32 position) const {
    const int32 start = position * kStride - params.before[axis];
    return min(start + kWindow, params.counted_high[axis]) - max(start, params.counted_low[axis]);
  }

  // A sum over so many rows and columns, 1 to 3 each, of which 16 bits do not show the last bits of a division.
  __device__ __forceinline__ static C share_of(C sum, int32 rows, int32 columns) {
    if constexpr (sizeof(T) == sizeof(C)) return sum / static_cast<C>(rows * columns);
    const auto one_over = [](int32 places) { return places == 3 ? C(1) / 3 : places == 2 ? C(0.5) : C(1); };
    return sum * (one_over(rows) * one_over(columns));
  }

  __device__ __forceinline__ void write(int32 output_row, const Windows& windows, C alpha, C beta) {
    using Stored = Vector<T, kOutputs>;
    C values[kOutputs];
    windows.take(values);
    if constexpr (kMode == PoolingMode::kAverage) {
      const int32 rows = counted(0, output_row);
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) values[n] = share_of(values[n], rows, counted(1, first + n));
    }
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) values[n] *= alpha;
    if (beta != C(0)) {
      const Stored old = *reinterpret_cast<const Stored*>(output);
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) values[n] += beta * widen(old.at[n]);
    }
    Stored stored;
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) stored.at[n] = narrow<T>(values[n]);
    *reinterpret_cast<Stored*>(output) = stored;
    output += params.output_row;
    if constexpr (kKeepsPlaces) {
      Vector<int32, kOutputs> places;
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) places.at[n] = windows.at[n].place;
      *reinterpret_cast<Vector<int32, kOutputs>*>(indices) = places;
      indices += params.indices_row;
    }
  }

  // No windows yet, whose places are the first ones inside: what a window of minus infinities has.
  __device__ __forceinline__ void begin_with_places(Windows& windows, int32 output_row) const {
    const int32 top = max(output_row * kStride - params.before[0], 0) * params.x_extent[1];
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      windows.at[n] = InWindow<T, kMode, kPropagatesNan>::nothing();
      windows.at[n].place = top + max((first + n) * kStride - kBefore, 0);
    }
  }

  __device__ __forceinline__ void roll() {
    const C alpha = static_cast<C>(params.blend.alpha), beta = static_cast<C>(params.blend.beta);
    Windows kept;
    if constexpr (kKept > 0) {
      StripRow<T> top;
      load(top, row);
      kept = across(top, row);
      row += kKept;
    }
    StripRow<T> next[kStride];
#pragma unroll
    for (int r = 0; r < kStride; ++r) load(next[r], row + r);
    for (int32 output_row = begin; output_row < end; ++output_row) {
      StripRow<T> found[kStride];
#pragma unroll
      for (int r = 0; r < kStride; ++r) found[r] = next[r];
#pragma unroll
      for (int r = 0; r < kStride; ++r) load(next[r], row + kStride + r, output_row + 1 < end);  // under way while these are looked at
      const Windows upper = across(found[0], row), lower = across(found[1], row + 1);
      row += kStride;
      Windows windows;
      if constexpr (kKeepsPlaces) {
        begin_with_places(windows, output_row);
        if constexpr (kKept > 0) windows.join(kept);
        windows.join(upper);
      } else if constexpr (kKept > 0) {
        windows = kept;
        windows.join(upper);
      } else {
        windows = upper;
      }
      windows.join(lower);
      write(output_row, windows, alpha, beta);
      kept = lower;
    }
  }
};

template <typename T, PoolingMode kMode, int kWindow, int kBefore>
__device__ void pooling_vector_planes(const RollingPlanesParams& params) {
  const int32 item = static_cast<int32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= params.items) return;
  if (kMode != PoolingMode::kAverage && params.propagates_nan != 0) {
    VectorPlanes<T, kMode, true, kWindow, kBefore>(params, item).roll();
  } else {
    VectorPlanes<T, kMode, false, kWindow, kBefore>(params, item).roll();
  }
}

}  // namespace dnncore
