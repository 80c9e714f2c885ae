// What pooling over two spatial dimensions works on, forward and backward (pooling_planar.cuh): tiles of the output, strips of a
// tile that a thread takes, the windows over a strip, and their values. A block works out once where its tile lies; inside,
// everything is 32-bit arithmetic, because the host proved that a plane fits.
//
//    a tile of the output            a strip        x under it, window 3 x 3, stride 2
//    +---+---+---+---+--             o              . . .   row 0
//    | s | s | s | s |               o              . . .   row 1
//    | s | s | s | s |               o              . . .   row 2, shared by the first two windows
//    | s | s | s | s |               o              . . .   row 3
//    | s | s | s | s |                              ...     up to row 8
//    +---+---+---+---+--
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

}  // namespace dnncore
