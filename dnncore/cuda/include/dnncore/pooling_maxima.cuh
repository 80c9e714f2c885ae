// The first maxima of windows that lie side by side, found again by a thread that walks down their rows: those of a strip of x, of a
// vector of channels. Of each row of x it keeps what its windows have in that row, as pooling_rolling_planes.cuh does; the rows that
// the next windows see, too, are not loaded again.
//
// A maximum's place is a number: its row of x times kPlacesOfRow, and its column, counted from the strip's first. So it stays the same
// for the windows below. What lies outside counts as minus infinity at the nearest place inside: that is how of a window of minus
// infinities the first place inside wins.
#pragma once

#include <type_traits>

#include "dnncore/common/loaded.cuh"
#include "dnncore/pooling_mode.cuh"

namespace dnncore {

constexpr int kPlacesOfRow = 8;

template <typename T, bool kPropagatesNan, int kVector, int kWindow, int kStride, int kWindows>
struct StripMaxima {
  using C = Compute<T>;
  using Part = InWindow<T, PoolingMode::kIndices, kPropagatesNan>;
  static constexpr int kWide = (kWindows - 1) * kStride + kWindow;
  static constexpr int kKept = kWindow > kStride ? kWindow - kStride : 0;  // rows of x that the next windows see, too
  static constexpr int kNew = kWindow - kKept;
  static_assert(kWide <= kPlacesOfRow);

  // Rows on their way from memory.
  template <int kRows>
  struct Rows {
    Loaded<T, kVector> at[kRows][kWide];
  };
  struct Places {
    int32 at[kWindows][kVector];
  };

  const char* x;   // of the strip's first column, in the next row to load
  int64 row_step;  // bytes
  int32 column_step;
  int32 extent;    // rows of x
  uint32 inside;   // a bit for each column that is inside
  int32 nearest;   // the first column inside
  Part kept[kKept + 1][kWindows][kVector];  // an array needs some extent

  // From a row on, of an image's channels.
  __device__ __forceinline__ StripMaxima(
      const char* x, int64 row_step, int32 column_step, int32 rows, int32 columns, int32 row, int32 left)
      : x(x + row * row_step + static_cast<int64>(left) * column_step),
        row_step(row_step), column_step(column_step), extent(rows), inside(0), nearest(max(-left, 0)) {
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
      inside |= static_cast<uint32>(static_cast<uint32>(left + s) < static_cast<uint32>(columns)) << s;
    }
    if constexpr (kKept > 0) {
      Rows<kKept> rows;
      load(rows, row);
#pragma unroll
      for (int r = 0; r < kKept; ++r) across(rows.at[r], row + r, kept[r]);
    }
  }

  // Ask for the next rows of x, of which `row` is the first, if they are wanted.
  template <int kRows>
  __device__ __forceinline__ void load(Rows<kRows>& rows, int32 row, bool wanted = true) {
    Loaded<T, kVector> outside;
#pragma unroll
    for (int i = 0; i < kVector; ++i) reinterpret_cast<T*>(&outside.word)[i] = narrow<T>(-C(INFINITY));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool is_row = wanted && static_cast<uint32>(row + r) < static_cast<uint32>(extent);
#pragma unroll
      for (int s = 0; s < kWide; ++s) {
        auto& word = rows.at[r][s].word;
        word = outside.word;
        if (is_row && (inside >> s & 1) != 0) {
          word = *reinterpret_cast<const std::remove_reference_t<decltype(word)>*>(x + s * static_cast<int64>(column_step));
        }
      }
      x += row_step;
    }
  }

  // What the windows have in a row of x.
  __device__ __forceinline__ void across(
      const Loaded<T, kVector> (&places)[kWide], int32 row, Part (&windows)[kWindows][kVector]) const {
    C values[kWide][kVector];
#pragma unroll
    for (int s = 0; s < kWide; ++s) places[s].widen_into(values[s]);
    const int32 first = max(row, 0) * kPlacesOfRow;
#pragma unroll
    for (int n = 0; n < kWindows; ++n) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const C value = values[n * kStride][i];
        windows[n][i] = {kPropagatesNan ? value : fmaxf(value, -C(INFINITY)), first + max(n * kStride, nearest)};
#pragma unroll
        for (int s = n * kStride + 1; s < n * kStride + kWindow; ++s) {
          windows[n][i].join({values[s][i], first + max(s, nearest)});
        }
      }
    }
  }

  // Where the maxima of the next windows are, of which `top` is the first row: rows.at[0] is that of x behind those that are kept.
  __device__ __forceinline__ Places look(const Rows<kNew>& rows, int32 top) {
    Part fresh[kNew][kWindows][kVector];
#pragma unroll
    for (int r = 0; r < kNew; ++r) across(rows.at[r], top + kKept + r, fresh[r]);
    Places places;
#pragma unroll
    for (int n = 0; n < kWindows; ++n) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        Part window = kKept > 0 ? kept[0][n][i] : fresh[0][n][i];
#pragma unroll
        for (int r = 1; r < kWindow; ++r) window.join(r < kKept ? kept[r][n][i] : fresh[r < kKept ? 0 : r - kKept][n][i]);
        places.at[n][i] = window.place;
#pragma unroll
        for (int r = 0; r < kKept; ++r) {
          kept[r][n][i] = r + kStride < kKept ? kept[r + kStride][n][i] : fresh[r + kStride < kKept ? 0 : r + kStride - kKept][n][i];
        }
      }
    }
    return places;
  }
};

}  // namespace dnncore
