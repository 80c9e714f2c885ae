// Pooling over two spatial dimensions (a single one comes with H = 1), a tile of the output at a time. A block works
// out once where its tile lies; inside, everything is 32-bit arithmetic, because the host proved that a plane fits. A
// thread takes a strip of kStrip rows in one column, so that what depends on the column is worked out once. The windows
// that networks use, 3x3 and 2x2 with stride 2, are unrolled: all loads of a strip's windows are under way at once, and
// rows that two of them share are loaded once.
//
//    a tile of the output            a strip        x under it, window 3 x 3, stride 2
//    +---+---+---+---+--             o              . . .   row 0
//    | s | s | s | s |               o              . . .   row 1
//    | s | s | s | s |               o              . . .   row 2, shared by the first two windows
//    | s | s | s | s |               o              . . .   row 3
//    | s | s | s | s |                              ...     up to row 8
//    +---+---+---+---+--
//
// Backward is a gather, without atomics: a thread adds up what the windows over its strip pass to each place, and reads
// each of those windows once. Where the forward pass kept the indices, it reads them and dy from memory. Otherwise the
// block first works out, in shared memory and once for every window over its tile, what the window passes on and, for a
// maximum, to which place. The maximum is searched for in x again: of equal ones the first in row-major order wins, and
// the first NaN before everything else. y would only tell how large it is, and stays unread.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/pooling_mode.cuh"

namespace dnncore {

// Strides of a tensor [N, C, H, W].
struct PlaneView {
  int64 image;
  int64 channel;
  int32 row;
  int32 column;
};

constexpr int kStrip = 4;  // _STRIP in dnncore/cuda/pooling/planar.py

// How to find one of a tile's strips. In NCHW the column counts fastest, then the row of strips, then the channel; with
// channels last, the channel counts fastest, then the column, then the row of strips.
struct TileShape {
  int32 strips;
  SmallDivisor fastest;
  SmallDivisor middle;
};

__device__ __forceinline__ int64 plane_offset(const PlaneView& view, int64 n, int c) { return n * view.image + c * view.channel; }

// Mirrored by _PARAMS in dnncore/cuda/pooling/planar.py. Pairs are (rows, columns).
struct PlanarPoolingParams {
  Blend blend;
  const void* x;
  const void* y;  // not read
  const void* dy;
  void* output;
  int32* indices;
  PlaneView x_view;
  PlaneView dy_view;
  PlaneView output_view;
  PlaneView indices_view;
  int32 channels;
  int32 x_extent[2];
  int32 y_extent[2];
  int32 window[2];
  SmallDivisor stride[2];
  int32 before[2];
  // An average divides by the number of its window's places from counted_low to before counted_high. Padding counts as
  // far as it goes, or not at all; places behind it, which a ceil-mode window may reach, do not count.
  int32 counted_low[2];
  int32 counted_high[2];
  int64 tiles;
  Divisor channel_tiles;
  Divisor row_tiles;
  Divisor column_tiles;
  int32 tile[3];         // channels, rows (whole strips), columns of the output
  TileShape places;      // of such a tile
  int32 window_tile[2];  // backward: most windows over a tile
  TileShape windows;
  int32 channels_last;
  int32 propagates_nan;
};

// A window that the compiler knows, the same in both dimensions; 0 stands for any.
template <int kWindow_, int kStride_>
struct PlanarWindow {
  static constexpr int kWindow = kWindow_;
  static constexpr int kStride = kStride_;
  static constexpr int kUnroll = kWindow == 0 ? 1 : kStrip;
  static constexpr int kMoves = kWindow == 0 ? 1 : kStride;
  // The most windows over a place, and over a strip's rows.
  static constexpr int kOverPlace = kWindow == 0 ? 0 : (kWindow - 1) / kMoves + 1;
  static constexpr int kOverStrip = kWindow == 0 ? 0 : (kStrip - 1 + kWindow - 1) / kMoves + 1;

  static __device__ __forceinline__ int extent(const PlanarPoolingParams& params, int axis) {
    return kWindow == 0 ? params.window[axis] : kWindow;
  }
  static __device__ __forceinline__ int stride(const PlanarPoolingParams& params, int axis) {
    return kStride_ == 0 ? params.stride[axis].value : kStride_;
  }
  static __device__ __forceinline__ int divide_by_stride(const PlanarPoolingParams& params, int axis, int number) {
    return kStride_ == 0 ? divide(number, params.stride[axis]).quotient
                         : static_cast<int>(static_cast<uint32>(number) / static_cast<uint32>(kStride_));
  }
};

struct Corner {
  int64 n;
  int32 c;
  int32 row;
  int32 column;
};

__device__ __forceinline__ Corner corner_of(const PlanarPoolingParams& params, int64 tile) {
  const QuotientRemainder column = divide(tile, params.column_tiles);
  const QuotientRemainder row = divide(column.quotient, params.row_tiles);
  const QuotientRemainder channel = divide(row.quotient, params.channel_tiles);
  return {channel.quotient, static_cast<int32>(channel.remainder) * params.tile[0],
          static_cast<int32>(row.remainder) * params.tile[1], static_cast<int32>(column.remainder) * params.tile[2]};
}

// Where a strip begins, counted from its tile's corner.
struct Strip {
  int32 c;
  int32 row;
  int32 column;
};

__device__ __forceinline__ Strip strip_of(const TileShape& shape, bool channels_last, int index) {
  const SmallQuotientRemainder first = divide(index, shape.fastest);
  const SmallQuotientRemainder second = divide(first.quotient, shape.middle);
  if (channels_last) return {first.remainder, second.quotient * kStrip, second.remainder};
  return {second.quotient, second.remainder * kStrip, first.remainder};
}

struct Range {
  int low;
  int high;
};

// The windows over places first to last of one dimension.
template <typename Window>
__device__ __forceinline__ Range windows_over(const PlanarPoolingParams& params, int axis, int first, int last) {
  const int past = first + params.before[axis] - Window::extent(params, axis) + Window::stride(params, axis);
  return {Window::divide_by_stride(params, axis, max(past, 0)),
          min(Window::divide_by_stride(params, axis, last + params.before[axis]) + 1, params.y_extent[axis])};
}

template <typename C, typename Window>
__device__ __forceinline__ C divisor_of(const PlanarPoolingParams& params, int top, int left) {
  const int start[2] = {top, left};
  int divisor = 1;
#pragma unroll
  for (int axis = 0; axis < 2; ++axis) {
    divisor *= min(start[axis] + Window::extent(params, axis), params.counted_high[axis]) - max(start[axis], params.counted_low[axis]);
  }
  return static_cast<C>(divisor);
}

// The windows of a strip of outputs, the first at `top`.
template <typename T, PoolingMode kMode, typename Window>
class StripOfWindows {
 public:
  using C = Compute<T>;
  static constexpr C kOutside = kMode == PoolingMode::kAverage ? C(0) : -C(INFINITY);

  __device__ __forceinline__ StripOfWindows(const PlanarPoolingParams& params, const T* plane, int top, int left)
      : params_(params), plane_(plane), top_(top), left_(left) {
    if constexpr (Window::kWindow != 0) {
      // An integer has no minus infinity to stand for what lies outside.
      constexpr bool kStoresOutside = kMode == PoolingMode::kAverage || sizeof(T) > 1;
      LoadedOne<T> loaded[kRows][Window::kWindow];
      const auto is_inside = [&](int r, int s) {
        return static_cast<uint32>(top + r) < static_cast<uint32>(params.x_extent[0]) &&
               static_cast<uint32>(left + s) < static_cast<uint32>(params.x_extent[1]);
      };
      const LoadedOne<T> outside = LoadedOne<T>::of(narrow<T>(kStoresOutside ? kOutside : C(0)));
      const T* const corner = plane + static_cast<int64>(top) * params.x_view.row + static_cast<int64>(left) * params.x_view.column;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int s = 0; s < Window::kWindow; ++s) {
          loaded[r][s] = outside;
          loaded[r][s].load_if(is_inside(r, s), corner + (r * params.x_view.row + s * params.x_view.column));
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int s = 0; s < Window::kWindow; ++s) {
          values_[r][s] = kStoresOutside || is_inside(r, s) ? loaded[r][s].widened() : kOutside;
        }
      }
    }
  }

  // Call visitor(value, row, column) for the places of the index-th window in row-major order. Places outside the input
  // are left out, or come with the value kOutside.
  template <typename Visitor>
  __device__ __forceinline__ void visit(int index, const Visitor& visitor) const {
    const int top = top_ + index * Window::stride(params_, 0);
    if constexpr (Window::kWindow != 0) {
#pragma unroll
      for (int r = 0; r < Window::kWindow; ++r) {
#pragma unroll
        for (int s = 0; s < Window::kWindow; ++s) visitor(values_[index * Window::kStride + r][s], top + r, left_ + s);
      }
    } else {
      const int bottom = min(top + params_.window[0], params_.x_extent[0]);
      const int right = min(left_ + params_.window[1], params_.x_extent[1]);
      for (int row = max(top, 0); row < bottom; ++row) {
        for (int column = max(left_, 0); column < right; ++column) visitor(at(row, column), row, column);
      }
    }
  }

 private:
  static constexpr int kRows = (kStrip - 1) * Window::kStride + Window::kWindow;

  __device__ __forceinline__ C at(int row, int column) const {
    return widen(plane_[row * params_.x_view.row + column * params_.x_view.column]);
  }

  const PlanarPoolingParams& params_;
  const T* plane_;
  int top_;
  int left_;
  C values_[kRows + 1][Window::kWindow + 1];  // for known windows only; an array needs some extent
};

// The first maximum of a window, and its place in the plane.
template <typename C>
struct Winner {
  C value;
  int32 place;
};

template <typename T, PoolingMode kMode, typename Window>
__device__ __forceinline__ Winner<Compute<T>> winner_of(
    const PlanarPoolingParams& params, const StripOfWindows<T, kMode, Window>& windows, int index, int top, int left) {
  using C = Compute<T>;
  const int width = params.x_extent[1];
  Winner<C> winner{-C(INFINITY), max(top, 0) * width + max(left, 0)};  // for a window of minus infinities
  windows.visit(index, [&](C value, int row, int column) {
    if (exceeds(value, winner.value, params.propagates_nan)) winner = {value, row * width + column};
  });
  return winner;
}

template <typename T, PoolingMode kMode, typename Window>
__device__ __forceinline__ void pool_tiles(const PlanarPoolingParams& params) {
  using C = Compute<T>;
  for (int64 tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
    const Corner corner = corner_of(params, tile);
    for (int i = threadIdx.x; i < params.places.strips; i += blockDim.x) {
      const Strip strip = strip_of(params.places, params.channels_last, i);
      const int c = corner.c + strip.c;
      const int q = corner.column + strip.column;
      if (c >= params.channels || q >= params.y_extent[1]) continue;
      const T* x = static_cast<const T*>(params.x) + plane_offset(params.x_view, corner.n, c);
      T* y = static_cast<T*>(params.output) + plane_offset(params.output_view, corner.n, c) + q * params.output_view.column;
      const int left = q * Window::stride(params, 1) - params.before[1];
      const int first = corner.row + strip.row;
      const int top = first * Window::stride(params, 0) - params.before[0];
      const StripOfWindows<T, kMode, Window> windows(params, x, top, left);
#pragma unroll Window::kUnroll
      for (int k = 0; k < kStrip; ++k) {
        const int p = first + k;
        if (p >= params.y_extent[0]) break;
        C result = windows.kOutside;
        if constexpr (kMode == PoolingMode::kMax) {
          windows.visit(k, [&](C value, int, int) {
            if (value > result || (params.propagates_nan && value != value)) result = value;
          });
        } else if constexpr (kMode == PoolingMode::kIndices) {
          const Winner<C> winner = winner_of(params, windows, k, top + k * Window::stride(params, 0), left);
          result = winner.value;
          const int64 plane = plane_offset(params.indices_view, corner.n, c);
          params.indices[plane + p * params.indices_view.row + q * params.indices_view.column] = winner.place;
        } else {
          windows.visit(k, [&](C value, int, int) { result += value; });
          result /= divisor_of<C, Window>(params, top + k * Window::stride(params, 0), left);
        }
        blend_into(params.blend, result, y + p * params.output_view.row);
      }
    }
  }
}

// What a window passes on, and to which place of the plane; an average passes it to all of them.
template <typename C>
struct Share {
  C gradient;
  int32 place;

  __device__ __forceinline__ C widened() const { return gradient; }
};

// The same, on its way from memory.
template <typename T>
struct StoredShare {
  LoadedOne<T> gradient;
  int32 place;

  __device__ __forceinline__ Compute<T> widened() const { return gradient.widened(); }
};

// Add up what the windows over a strip of dx pass to its places, and blend the sums into dx: rows from `first` on,
// before `row_end`. shares(p, q, inside) returns what window (p, q) passes on, which is nothing when not `inside`. For
// a known window all shares are asked for before the first one is used.
template <typename T, PoolingMode kMode, typename Window, typename Shares>
__device__ __forceinline__ void gather_strip(
    const PlanarPoolingParams& params, int first, int row_end, int column, T* dx, const Shares& shares) {
  using C = Compute<T>;
  const Range rows = windows_over<Window>(params, 0, first, min(first + kStrip, row_end) - 1);
  const Range columns = windows_over<Window>(params, 1, column, column);
  const int width = params.x_extent[1];
  const int first_place = first * width + column;
  C sums[kStrip] = {};
  const auto take = [&](const auto& share, int p, bool inside) {
    const int above = first - (p * Window::stride(params, 0) - params.before[0]);  // rows of the window above the strip
    const C gradient = share.widened();
#pragma unroll
    for (int k = 0; k < kStrip; ++k) {
      const bool covered = inside && static_cast<uint32>(above + k) < static_cast<uint32>(Window::extent(params, 0));
      const bool takes = kMode == PoolingMode::kAverage || share.place == first_place + k * width;
      if (covered && takes) sums[k] += gradient;
    }
  };
  if constexpr (Window::kWindow == 0) {
    for (int p = rows.low; p < rows.high; ++p) {
      for (int q = columns.low; q < columns.high; ++q) take(shares(p, q, true), p, true);
    }
  } else {
    const auto is_inside = [&](int a, int b) { return rows.low + a < rows.high && columns.low + b < columns.high; };
    decltype(shares(0, 0, true)) asked[Window::kOverStrip][Window::kOverPlace];
#pragma unroll
    for (int a = 0; a < Window::kOverStrip; ++a) {
#pragma unroll
      for (int b = 0; b < Window::kOverPlace; ++b) asked[a][b] = shares(rows.low + a, columns.low + b, is_inside(a, b));
    }
#pragma unroll
    for (int a = 0; a < Window::kOverStrip; ++a) {
#pragma unroll
      for (int b = 0; b < Window::kOverPlace; ++b) take(asked[a][b], rows.low + a, is_inside(a, b));
    }
  }
#pragma unroll
  for (int k = 0; k < kStrip; ++k) {
    if (first + k < row_end) blend_into(params.blend, sums[k], dx + (first + k) * params.output_view.row);
  }
}

// From the indices that the forward pass kept.
template <typename T, typename Window>
__device__ __forceinline__ void gather_tiles(const PlanarPoolingParams& params) {
  for (int64 tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
    const Corner corner = corner_of(params, tile);
    for (int i = threadIdx.x; i < params.places.strips; i += blockDim.x) {
      const Strip strip = strip_of(params.places, params.channels_last, i);
      const int c = corner.c + strip.c;
      const int column = corner.column + strip.column;
      const int first = corner.row + strip.row;
      if (c >= params.channels || column >= params.x_extent[1] || first >= params.x_extent[0]) continue;
      const T* dy = static_cast<const T*>(params.dy) + plane_offset(params.dy_view, corner.n, c);
      const int32* indices = params.indices + plane_offset(params.indices_view, corner.n, c);
      T* dx = static_cast<T*>(params.output) + plane_offset(params.output_view, corner.n, c) + column * params.output_view.column;
      gather_strip<T, PoolingMode::kIndices, Window>(params, first, params.x_extent[0], column, dx, [&](int p, int q, bool inside) {
        StoredShare<T> share{{}, -1};
        share.gradient.load_if(inside, dy + (p * params.dy_view.row + q * params.dy_view.column));
        if (inside) share.place = indices[p * params.indices_view.row + q * params.indices_view.column];
        return share;
      });
    }
  }
}

template <typename T, PoolingMode kMode, typename Window>
__device__ __forceinline__ void spread_tiles(const PlanarPoolingParams& params) {
  using C = Compute<T>;
  constexpr bool kIsMax = kMode == PoolingMode::kMax;
  extern __shared__ __align__(16) unsigned char shared[];
  const int per_channel = params.window_tile[0] * params.window_tile[1];
  C* const gradients = reinterpret_cast<C*>(shared);                                        // what windows pass on
  int32* const places = reinterpret_cast<int32*>(gradients + params.tile[0] * per_channel);  // where: row * W + column
  const int c_step = params.channels_last ? 1 : per_channel;
  const int q_step = params.channels_last ? params.tile[0] : 1;
  const int p_step = params.window_tile[1] * q_step;
  for (int64 tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
    const Corner corner = corner_of(params, tile);
    const int row_end = min(corner.row + params.tile[1], params.x_extent[0]);
    const int column_end = min(corner.column + params.tile[2], params.x_extent[1]);
    const Range rows = windows_over<Window>(params, 0, corner.row, row_end - 1);
    const Range columns = windows_over<Window>(params, 1, corner.column, column_end - 1);

    for (int i = threadIdx.x; i < params.windows.strips; i += blockDim.x) {
      const Strip strip = strip_of(params.windows, params.channels_last, i);
      const int c = corner.c + strip.c;
      const int q = columns.low + strip.column;
      if (c >= params.channels || q >= columns.high) continue;
      const T* x = static_cast<const T*>(params.x) + plane_offset(params.x_view, corner.n, c);
      const T* dy = static_cast<const T*>(params.dy) + plane_offset(params.dy_view, corner.n, c) + q * params.dy_view.column;
      const int left = q * Window::stride(params, 1) - params.before[1];
      const int first = rows.low + strip.row;
      LoadedOne<T> received[kStrip];
#pragma unroll
      for (int k = 0; k < kStrip; ++k) received[k].load_if(first + k < rows.high, dy + (first + k) * params.dy_view.row);
      const int first_top = first * Window::stride(params, 0) - params.before[0];
      const StripOfWindows<T, kMode, Window> windows(params, x, first_top, left);  // loaded for a maximum only
#pragma unroll
      for (int k = 0; k < kStrip; ++k) {
        if (first + k >= rows.high) break;
        const int window = strip.c * c_step + (strip.row + k) * p_step + strip.column * q_step;
        const int top = first_top + k * Window::stride(params, 0);
        if constexpr (kIsMax) {
          gradients[window] = received[k].widened();
          places[window] = winner_of(params, windows, k, top, left).place;
        } else {
          gradients[window] = received[k].widened() / divisor_of<C, Window>(params, top, left);
        }
      }
    }
    __syncthreads();

    for (int i = threadIdx.x; i < params.places.strips; i += blockDim.x) {
      const Strip strip = strip_of(params.places, params.channels_last, i);
      const int c = corner.c + strip.c;
      const int column = corner.column + strip.column;
      const int first = corner.row + strip.row;
      if (c >= params.channels || column >= column_end || first >= row_end) continue;
      T* dx = static_cast<T*>(params.output) + plane_offset(params.output_view, corner.n, c) + column * params.output_view.column;
      const int origin = strip.c * c_step - rows.low * p_step - columns.low * q_step;
      gather_strip<T, kMode, Window>(params, first, row_end, column, dx, [&](int p, int q, bool inside) {
        const int window = inside ? origin + p * p_step + q * q_step : 0;
        return Share<C>{gradients[window], kIsMax ? places[window] : 0};
      });
    }
    __syncthreads();  // before the next tile's windows overwrite this one's
  }
}

template <typename T, PoolingMode kMode, bool kForward, typename Window>
__device__ __forceinline__ void pool_or_spread(const PlanarPoolingParams& params) {
  if constexpr (kForward) {
    pool_tiles<T, kMode, Window>(params);
  } else if constexpr (kMode == PoolingMode::kIndices) {
    gather_tiles<T, Window>(params);
  } else {
    spread_tiles<T, kMode, Window>(params);
  }
}

template <typename T, PoolingMode kMode, bool kForward>
__device__ void pooling_planar(const PlanarPoolingParams& params) {
  const auto is = [&](int window) {
    return params.window[0] == window && params.window[1] == window && params.stride[0].value == 2 && params.stride[1].value == 2;
  };
  if (is(3)) {
    pool_or_spread<T, kMode, kForward, PlanarWindow<3, 2>>(params);
  } else if (is(2)) {
    pool_or_spread<T, kMode, kForward, PlanarWindow<2, 2>>(params);
  } else {
    pool_or_spread<T, kMode, kForward, PlanarWindow<0, 0>>(params);
  }
}

}  // namespace dnncore
