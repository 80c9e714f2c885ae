// Pooling forward over two spatial dimensions of planes, for windows of 2 x 2 and 3 x 3. A thread takes kColumns neighbouring columns
// of outputs and walks down their rows. Of each row of x it keeps what its windows have in that row, their maxima, also with their
// places, or their sums; those of kWindow rows give a row of outputs, and the rows that the next windows see, too, are kept for these.
//
//       x            across
//    . . . . .   ->    - -    \
//    . . . . .   ->    - -     >   o o      windows of 3 x 3, stride 2, two columns
//    . . . . .   ->    - -    /
//    . . . . .   ->    - -    the third row is the first one of the next windows
//
// Neighbouring threads have neighbouring strips, so that what a warp reads lies together; a strip's outputs are stored at once where rows
// let them.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/pooling_mode.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/pooling/rolling_planes.py. Pairs are (rows, columns). Distances count elements.
struct RollingPlanesParams {
  Blend blend;
  const void* x;
  void* output;
  int32* indices;
  int64 x_plane[2];  // from an image, and from a channel, to the next
  int64 output_plane[2];
  int64 indices_plane[2];
  int32 x_row;
  int32 output_row;
  int32 indices_row;
  int32 x_extent[2];
  int32 y_extent[2];
  int32 before[2];
  int32 counted_low[2];  // as in PlanarPoolingParams
  int32 counted_high[2];
  SmallDivisor strips;    // of a row of outputs
  SmallDivisor channels;
  SmallDivisor walks;     // of a plane's rows
  int32 walk;             // rows of outputs, at most
  int32 items;            // walks of strips of all planes
  int32 in_pairs;         // every strip is whole, and can be stored at once
  int32 propagates_nan;
};

template <typename T, PoolingMode kMode, bool kPropagatesNan, int kWindow, int kStride, int kColumns>
struct RollingPlanes {
  using C = Compute<T>;
  using Part = InWindow<T, kMode, kPropagatesNan>;
  static constexpr int kWide = (kColumns - 1) * kStride + kWindow;
  static constexpr int kKept = kWindow > kStride ? kWindow - kStride : 0;  // rows of x that the next windows see, too
  static constexpr int kNew = kWindow - kKept;

  const RollingPlanesParams& params;
  const T* x;        // of the strip's first column, in the next row to load
  T* output;         // of its first column, in the next row to write
  int32* indices;    // likewise
  uint32 inside;     // a bit for each of its columns of x that is inside
  int32 left;        // the first of these, which may lie outside
  int32 first;       // column of outputs
  int32 row;         // of x: the next one to load
  int32 begin;
  int32 end;

  __device__ __forceinline__ RollingPlanes(const RollingPlanesParams& params, int32 item) : params(params) {
    const SmallQuotientRemainder strip = divide(item, params.strips);
    const SmallQuotientRemainder channel = divide(strip.quotient, params.channels);
    const SmallQuotientRemainder walk = divide(channel.quotient, params.walks);
    const int64 image = walk.quotient;
    first = strip.remainder * kColumns;
    left = first * kStride - params.before[1];
    inside = 0;
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
      inside |= static_cast<uint32>(static_cast<uint32>(left + s) < static_cast<uint32>(params.x_extent[1])) << s;
    }
    begin = walk.remainder * params.walk;
    end = min(begin + params.walk, params.y_extent[0]);
    row = begin * kStride - params.before[0];
    x = static_cast<const T*>(params.x) + image * params.x_plane[0] + channel.remainder * params.x_plane[1] +
        (static_cast<int64>(row) * params.x_row + left);
    output = static_cast<T*>(params.output) + image * params.output_plane[0] + channel.remainder * params.output_plane[1] +
             (static_cast<int64>(begin) * params.output_row + first);
    indices = params.indices;
    if constexpr (Part::kKeepsPlaces) {
      indices += image * params.indices_plane[0] + channel.remainder * params.indices_plane[1] +
                 (static_cast<int64>(begin) * params.indices_row + first);
    }
  }

  // Ask for the strip's places in so many rows of x, if they are wanted.
  template <int kRows>
  __device__ __forceinline__ void load(LoadedOne<T> (&places)[kRows][kWide], int32 from, bool wanted = true) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool is_row = wanted && static_cast<uint32>(from + r) < static_cast<uint32>(params.x_extent[0]);
#pragma unroll
      for (int s = 0; s < kWide; ++s) {
        places[r][s] = LoadedOne<T>::of(narrow<T>(Part::nothing().value));
        places[r][s].load_if(is_row && (inside >> s & 1) != 0, x + s);
      }
      x += params.x_row;
    }
  }

  // What the windows have in a row of x.
  __device__ __forceinline__ void across(const LoadedOne<T> (&places)[kWide], int32 at_row, Part (&windows)[kColumns]) const {
    const int32 place = static_cast<int32>(static_cast<uint32>(at_row) * static_cast<uint32>(params.x_extent[1])) + left;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      windows[n] = Part::nothing();  // which NaN that does not count leaves as it is
#pragma unroll
      for (int s = 0; s < kWindow; ++s) {
        windows[n].join({places[n * kStride + s].widened(), place + n * kStride + s});
      }
    }
  }

  // The places that an average counts along an axis.
  __device__ __forceinline__ int32 counted(int axis, int32 position) const {
    const int32 start = position * kStride - params.before[axis];
    return min(start + kWindow, params.counted_high[axis]) - max(start, params.counted_low[axis]);
  }

  __device__ __forceinline__ void write(int32 output_row, const Part (&windows)[kColumns]) {
    C values[kColumns];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      values[n] = windows[n].value;
      if constexpr (kMode == PoolingMode::kAverage) values[n] /= static_cast<C>(counted(0, output_row) * counted(1, first + n));
    }
    if (params.in_pairs != 0) {
      using Stored = Vector<T, kColumns>;
      Stored stored{};
      if (params.blend.beta != 0.0) stored = *reinterpret_cast<const Stored*>(output);
      Vector<int32, kColumns> places;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        blend_into(params.blend, values[n], &stored.at[n]);
        places.at[n] = windows[n].place;
      }
      *reinterpret_cast<Stored*>(output) = stored;
      if constexpr (Part::kKeepsPlaces) *reinterpret_cast<Vector<int32, kColumns>*>(indices) = places;
    } else {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        if (first + n >= params.y_extent[1]) break;
        blend_into(params.blend, values[n], output + n);
        if constexpr (Part::kKeepsPlaces) indices[n] = windows[n].place;
      }
    }
    output += params.output_row;
    if constexpr (Part::kKeepsPlaces) indices += params.indices_row;
  }

  __device__ __forceinline__ void roll() {
    Part kept[kKept + 1][kColumns];  // an array needs some extent
    if constexpr (kKept > 0) {
      LoadedOne<T> places[kKept][kWide];
      load(places, row);
#pragma unroll
      for (int r = 0; r < kKept; ++r) across(places[r], row + r, kept[r]);
      row += kKept;
    }
    LoadedOne<T> places[kNew][kWide], next[kNew][kWide];
    load(next, row);
    for (int32 output_row = begin; output_row < end; ++output_row) {
#pragma unroll
      for (int r = 0; r < kNew; ++r) {
#pragma unroll
        for (int s = 0; s < kWide; ++s) places[r][s] = next[r][s];
      }
      load(next, row + kNew, output_row + 1 < end);  // under way while these are looked at
      Part rows[kNew][kColumns], windows[kColumns];
#pragma unroll
      for (int r = 0; r < kNew; ++r) across(places[r], row + r, rows[r]);
      row += kNew;
      const int32 top = max(output_row * kStride - params.before[0], 0) * params.x_extent[1];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        windows[n] = Part::nothing();
        windows[n].place = top + max(left + n * kStride, 0);  // of a window of minus infinities: its first place inside
#pragma unroll
        for (int r = 0; r < kWindow; ++r) windows[n].join(r < kKept ? kept[r][n] : rows[r - kKept][n]);
      }
      write(output_row, windows);
#pragma unroll
      for (int r = 0; r < kKept; ++r) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) kept[r][n] = r + kStride < kKept ? kept[r + kStride][n] : rows[r + kStride - kKept][n];
      }
    }
  }
};

template <typename T, PoolingMode kMode, int kWindow, int kStride, int kColumns>
__device__ void pooling_rolling_planes(const RollingPlanesParams& params) {
  const int32 item = static_cast<int32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= params.items) return;
  if (kMode != PoolingMode::kAverage && params.propagates_nan != 0) {
    RollingPlanes<T, kMode, true, kWindow, kStride, kColumns>(params, item).roll();
  } else {
    RollingPlanes<T, kMode, false, kWindow, kStride, kColumns>(params, item).roll();
  }
}

}  // namespace dnncore
