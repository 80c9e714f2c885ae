// Pooling forward over two spatial dimensions, channels innermost, for windows of 3 x 3 that overlap. A thread takes a vector of
// channels, 16 bytes, and kColumns neighbouring columns of outputs, and walks down their rows. Of each row of x it keeps only what
// its windows have in that row, their maxima or sums across columns; those of three rows give a row of outputs. So a thread loads
// each place of x once, however many of its windows that is in. A step loads two rows at once; the first one gives no outputs, but
// what the windows after it have in their first rows.
//
//       x                    across
//    . . . . . .      ->     - - - -   \
//    . . . . . .      ->     - - - -    >    o o o o        stride 1: a step gives two rows of outputs
//    . . . . . .      ->     - - - -   /                    stride 2: one, and a strip is wider in x
//
// Maxima stay packed: one instruction takes the larger ones of two times two halves, and nothing is widened. Sums are in float32.
// A place outside of x changes no maximum if it is taken for the next one inside, which is in the same windows; in a sum it is 0.
//
// Neighbouring threads have the neighbouring vectors of a group of channels, then neighbouring strips: a column that two strips see
// is loaded by two threads, but mostly of one block, and so once from the level-2 cache.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/pooling_mode.cuh"
#include "dnncore/pooling_pairs.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/pooling/rolling.py. Pairs are (rows, columns). Distances count bytes, and 32 bits hold those
// of rows and columns, so that one multiplication steps along an axis.
struct RollingPoolingParams {
  Blend blend;
  const void* x;
  void* output;
  int64 x_image;
  int64 output_image;
  int32 x_step[2];
  int32 output_step[2];
  int32 x_extent[2];
  int32 y_extent[2];
  int32 before[2];
  int32 counted_low[2];  // as in PlanarPoolingParams
  int32 counted_high[2];
  SmallDivisor vectors;  // of a group of channels
  SmallDivisor strips;   // of a row of outputs
  SmallDivisor groups;   // of all channels
  SmallDivisor walks;    // of an image's rows
  int32 walk;            // rows of outputs, at most
  int32 items;           // walks of strips of vectors of all images
  int32 propagates_nan;
};

constexpr int kRollingWindow = 3;

// What is done with a vector of 16-bit elements: a place of x is opened into parts, and parts of two places are joined.
template <typename T, bool kPropagatesNan>
struct VectorMaxima {
  static constexpr bool kSeesOutside = false;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kParts = 4;
  using Part = uint32;

  __device__ __forceinline__ static void open(const Loaded<T, kVector>& loaded, Part (&parts)[kParts]) {
    parts[0] = loaded.word.x;
    parts[1] = loaded.word.y;
    parts[2] = loaded.word.z;
    parts[3] = loaded.word.w;
  }
  __device__ __forceinline__ static Part joined(Part a, Part b) { return larger_pair<kPropagatesNan>(T{}, a, b); }

  // Blend a window's maxima into their places; where that changes nothing they are stored as they are.
  __device__ __forceinline__ static void write(const Blend& blend, const Part (&parts)[kParts], float, T* place) {
    Loaded<T, kVector> result;
    uint32 maxima[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) maxima[i] = kPropagatesNan ? parts[i] : joined(parts[i], kLeastPair<T>);
    result.word = {maxima[0], maxima[1], maxima[2], maxima[3]};
    if (blend.alpha != 1.0 || blend.beta != 0.0) {
      Loaded<T, kVector> old;
      old.load_if(blend.beta != 0.0, place);
      Compute<T> values[kVector];
      result.widen_into(values);
      T* const elements = reinterpret_cast<T*>(&result.word);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        elements[i] = blended(blend, values[i], reinterpret_cast<const T*>(&old.word) + i);
      }
    }
    *reinterpret_cast<decltype(result.word)*>(place) = result.word;
  }
};

template <typename T>
struct VectorSums {
  static constexpr bool kSeesOutside = true;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kParts = kVector;
  using Part = Compute<T>;

  __device__ __forceinline__ static void open(const Loaded<T, kVector>& loaded, Part (&parts)[kParts]) {
    loaded.widen_into(parts);
  }
  __device__ __forceinline__ static Part joined(Part a, Part b) { return a + b; }

  // Blend a window's averages, sums times `share`, into their places.
  __device__ __forceinline__ static void write(const Blend& blend, const Part (&parts)[kParts], Part share, T* place) {
    using Stored = Vector<T, kVector>;
    Stored vector{};
    if (blend.beta != 0.0) vector = *reinterpret_cast<const Stored*>(place);
#pragma unroll
    for (int i = 0; i < kVector; ++i) blend_into(blend, parts[i] * share, &vector.at[i]);
    *reinterpret_cast<Stored*>(place) = vector;
  }
};

// What kColumns windows have in a row of x, or in several.
template <typename Kind, int kColumns>
struct RowOfWindows {
  typename Kind::Part at[kColumns][Kind::kParts];

  __device__ __forceinline__ void join(const RowOfWindows& a, const RowOfWindows& b) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < Kind::kParts; ++i) at[n][i] = Kind::joined(a.at[n][i], b.at[n][i]);
    }
  }
};

// A strip of kColumns columns of outputs, from one row of them to another.
template <typename T, typename Kind, int kStride, int kColumns>
struct RollingStrip {
  using Place = Loaded<T, Kind::kVector>;
  using Row = RowOfWindows<Kind, kColumns>;
  static constexpr int kWide = (kColumns - 1) * kStride + kRollingWindow;
  static constexpr int kRows = 2 / kStride;  // of outputs, a step
  static_assert(kStride == 1 || kStride == 2, "a step takes two rows of x");
  static_assert(kStride == 2 || kColumns % 2 == 0, "two neighbours share what lies between them");

  const RollingPoolingParams& params;
  const char* columns[kWide];  // of x: the vector's places in row 0, or in the column next to one outside
  uint32 inside;               // a bit for each column that is inside
  char* line;                  // of the output: the vector's place in the strip's first column and row `row`
  int32 row;                   // of outputs: the next one; a step before `begin` for the first
  int32 begin;                 // the first row to write
  int32 end;                   // behind the last one
  int32 top;                   // the first row of x that the strip's windows see
  int32 first;                 // column of outputs

  __device__ __forceinline__ explicit RollingStrip(const RollingPoolingParams& params, int32 item) : params(params) {
    const SmallQuotientRemainder vector = divide(item, params.vectors);
    const SmallQuotientRemainder strip = divide(vector.quotient, params.strips);
    const SmallQuotientRemainder group = divide(strip.quotient, params.groups);
    const SmallQuotientRemainder walk = divide(group.quotient, params.walks);
    const int32 channel = (group.remainder * params.vectors.value + vector.remainder) * static_cast<int32>(sizeof(Place));
    begin = walk.remainder * params.walk;
    end = min(begin + params.walk, params.y_extent[0]);
    row = begin - kRows;
    top = max(begin * kStride - params.before[0], 0);
    first = strip.remainder * kColumns;
    const char* const image = static_cast<const char*>(params.x) + walk.quotient * params.x_image + channel;
    line = static_cast<char*>(params.output) + walk.quotient * params.output_image + channel;
    line += static_cast<int64>(row) * params.output_step[0] + static_cast<int64>(first) * params.output_step[1];
    const int32 left = first * kStride - params.before[1];
    inside = 0;
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
      const int32 column = min(max(left + s, 0), params.x_extent[1] - 1);
      columns[s] = image + static_cast<int64>(column) * params.x_step[1];
      inside |= static_cast<uint32>(column == left + s) << s;
    }
  }

  // Ask for the places of a row of x, counted from the first one of the next output's window. The first step of stride 2 would take
  // one above the walk's windows, of which nothing is kept; it takes their first one twice.
  __device__ __forceinline__ void load(int r, Place (&places)[kWide]) const {
    const int32 wanted = row * kStride - params.before[0] + r;
    const int32 there = min(max(wanted, top), params.x_extent[0] - 1);
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
      const char* const place = columns[s] + static_cast<int64>(there) * params.x_step[0];
      const bool counts = !Kind::kSeesOutside || (there == wanted && (inside >> s & 1) != 0);
      places[s].load_if(counts, reinterpret_cast<const T*>(place));
    }
  }

  __device__ __forceinline__ static Row across(const Place (&places)[kWide]) {
    typename Kind::Part x[kWide][Kind::kParts];
#pragma unroll
    for (int s = 0; s < kWide; ++s) Kind::open(places[s], x[s]);
    Row row;
#pragma unroll
    for (int i = 0; i < Kind::kParts; ++i) {
      if constexpr (kStride == 1) {
#pragma unroll
        for (int n = 0; n < kColumns; n += 2) {
          const auto middle = Kind::joined(x[n + 1][i], x[n + 2][i]);
          row.at[n][i] = Kind::joined(x[n][i], middle);
          row.at[n + 1][i] = Kind::joined(middle, x[n + 3][i]);
        }
      } else {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          row.at[n][i] = Kind::joined(Kind::joined(x[2 * n][i], x[2 * n + 1][i]), x[2 * n + 2][i]);
        }
      }
    }
    return row;
  }

  // One over the places that an average counts along an axis, of which there are 1 to 3.
  __device__ __forceinline__ float share(int axis, int32 output) const {
    const int32 start = output * kStride - params.before[axis];
    const int32 places = min(start + kRollingWindow, params.counted_high[axis]) - max(start, params.counted_low[axis]);
    return places == 3 ? 1.0f / 3 : places == 2 ? 0.5f : 1.0f;
  }

  // Write the next row of outputs, if it is one of this walk's.
  __device__ __forceinline__ void write(const Row& windows) {
    if (row >= begin && row < end) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        if (first + n >= params.y_extent[1]) break;
        const float part = Kind::kSeesOutside ? share(0, row) * share(1, first + n) : 1.0f;
        char* const place = line + static_cast<int64>(n) * params.output_step[1];
        Kind::write(params.blend, windows.at[n], part, reinterpret_cast<T*>(place));
      }
    }
    ++row;
    line += params.output_step[0];
  }

  __device__ __forceinline__ void roll() {
    Row above{}, last{};  // what the next windows have in their first two rows of x, and in the last of those alone
    while (row < end) {
      Place upper[kWide], lower[kWide];
      load(kRollingWindow - kStride, upper);
      load(kRollingWindow - kStride + 1, lower);
      const Row third = across(upper), fourth = across(lower);
      Row both, windows;
      both.join(third, fourth);
      if constexpr (kStride == 1) {
        windows.join(above, third);
        write(windows);
        windows.join(last, both);
        write(windows);
        above = both;
      } else {
        windows.join(last, both);
        write(windows);
      }
      last = fourth;
    }
  }
};

template <typename T, PoolingMode kMode, int kStride, int kColumns>
__device__ void pooling_rolling(const RollingPoolingParams& params) {
  const int32 item = static_cast<int32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= params.items) return;
  if constexpr (kMode == PoolingMode::kAverage) {
    RollingStrip<T, VectorSums<T>, kStride, kColumns>(params, item).roll();
  } else if (params.propagates_nan) {
    RollingStrip<T, VectorMaxima<T, true>, kStride, kColumns>(params, item).roll();
  } else {
    RollingStrip<T, VectorMaxima<T, false>, kStride, kColumns>(params, item).roll();
  }
}

}  // namespace dnncore
