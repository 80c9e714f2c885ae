// Pooling over two spatial dimensions (one comes with H = 1), a tile of the output at a time.
//
// A block works out once where its tile lies; inside, everything is 32-bit arithmetic: the host proved that a plane fits. A thread
// takes a strip of kStrip rows in one column, so that what depends on the column is worked out once. The windows that networks
// use, 3x3 and 2x2 with stride 2, are unrolled: all loads of a strip's windows are under way at once, and rows that two of them
// share are loaded once.
//
// Backward is a gather in two steps, without atomics: the block works out once for every window over its tile what the window
// passes on and, for a maximum, to which place; then each element of the tile adds up what its windows pass to it. The maximum is
// searched for in x again: of equal ones the first in row-major order wins, and the first NaN before everything else. So y, which
// would only say how large it is, stays unread.
#pragma once

#include "dnncore/common/tensor.cuh"
#include "dnncore/pooling_mode.cuh"

namespace dnncore {

// Strides of a tensor [N, C, H, W].
struct PlaneView {
  int64 image;
  int64 channel;
  int32 row;
  int32 column;
};

constexpr int kStrip = 4;  // _STRIP in pooling_planar.py

// How to find one of a tile's strips. NCHW counts columns, then rows of strips, then channels; channels last, channels come first.
struct TileShape {
  int32 strips;
  SmallDivisor fastest;
  SmallDivisor middle;
};

__device__ __forceinline__ int64 plane_offset(const PlaneView& view, int64 n, int c) { return n * view.image + c * view.channel; }

// _PARAMS in pooling_planar.py. Pairs are (rows, columns).
struct PlanarPoolingParams {
  Blend blend;
  const void* x;
  const void* y;  // not read
  const void* dy;
  void* output;
  PlaneView x_view;
  PlaneView dy_view;
  PlaneView output_view;
  int32 channels;
  int32 x_extent[2];
  int32 y_extent[2];
  int32 window[2];
  SmallDivisor stride[2];
  int32 before[2];
  int32 after[2];
  int64 tiles;
  Divisor channel_tiles;
  Divisor row_tiles;
  Divisor column_tiles;
  int32 tile[3];         // channels, rows (whole strips), columns of the output
  TileShape places;      // of such a tile
  int32 window_tile[2];  // backward: most windows over a tile
  TileShape windows;
  int32 channels_last;
};

// A window that is known when compiling, the same in both dimensions; 0 is any.
template <int kWindow_, int kStride_>
struct PlanarWindow {
  static constexpr int kWindow = kWindow_;
  static constexpr int kStride = kStride_;
  static constexpr int kUnroll = kWindow == 0 ? 1 : kStrip;
  static constexpr int kMostOver = kWindow == 0 ? 0 : (kWindow + kStride_ - 1) / kStride_;  // windows over a place, per dimension

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

// Call visitor(p, q, true) for every pair, row by row. When no range is longer than kMost, 0 being any length, the loops are
// unrolled and have no branches: what is beyond a range comes with false.
template <int kMost, typename Visitor>
__device__ __forceinline__ void visit_box(const Range& rows, const Range& columns, const Visitor& visitor) {
  if constexpr (kMost == 0) {
    for (int p = rows.low; p < rows.high; ++p) {
      for (int q = columns.low; q < columns.high; ++q) visitor(p, q, true);
    }
  } else {
#pragma unroll
    for (int a = 0; a < kMost; ++a) {
#pragma unroll
      for (int b = 0; b < kMost; ++b) {
        const bool inside = rows.low + a < rows.high && columns.low + b < columns.high;
        visitor(rows.low + a, columns.low + b, inside);
      }
    }
  }
}

// The windows over places first to last of a dimension.
template <typename Window>
__device__ __forceinline__ Range windows_over(const PlanarPoolingParams& params, int axis, int first, int last) {
  const int past = first + params.before[axis] - Window::extent(params, axis) + Window::stride(params, axis);
  return {Window::divide_by_stride(params, axis, max(past, 0)),
          min(Window::divide_by_stride(params, axis, last + params.before[axis]) + 1, params.y_extent[axis])};
}

// What an average divides by. Padding counts as far as it goes: places of a ceil-mode window behind it do not.
template <PoolingMode kMode, typename T, typename Window>
__device__ __forceinline__ T divisor_of(const PlanarPoolingParams& params, int top, int left) {
  constexpr bool kIncluded = kMode == PoolingMode::kAverageIncludePadding;
  const int start[2] = {top, left};
  int divisor = 1;
#pragma unroll
  for (int axis = 0; axis < 2; ++axis) {
    const int low = kIncluded ? start[axis] : max(start[axis], 0);
    const int end = params.x_extent[axis] + (kIncluded ? params.after[axis] : 0);
    divisor *= min(start[axis] + Window::extent(params, axis), end) - low;
  }
  return static_cast<T>(divisor);
}

// The windows of a strip of outputs, the first at `top`.
template <typename T, typename Window>
class StripOfWindows {
 public:
  __device__ __forceinline__ StripOfWindows(const PlanarPoolingParams& params, const T* plane, int top, int left, T outside)
      : params_(params), plane_(plane), top_(top), left_(left) {
    if constexpr (Window::kWindow != 0) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int s = 0; s < Window::kWindow; ++s) {
          const bool inside = static_cast<uint32>(top + r) < static_cast<uint32>(params.x_extent[0]) &&
                              static_cast<uint32>(left + s) < static_cast<uint32>(params.x_extent[1]);
          values_[r][s] = inside ? at(top + r, left + s) : outside;
        }
      }
    }
  }

  // Call visitor(value, row, column) for the index-th window's places in row-major order. Those outside the input are left out, or
  // come with the value `outside`.
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

  __device__ __forceinline__ T at(int row, int column) const {
    return plane_[row * params_.x_view.row + column * params_.x_view.column];
  }

  const PlanarPoolingParams& params_;
  const T* plane_;
  int top_;
  int left_;
  T values_[kRows + 1][Window::kWindow + 1];  // known windows only; an array needs some extent
};

template <typename T, PoolingMode kMode, typename Window>
__device__ __forceinline__ void pool_tiles(const PlanarPoolingParams& params) {
  constexpr bool kIsMax = kMode == PoolingMode::kMax;
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
      const T nothing = kIsMax ? -T(INFINITY) : T(0);
      const StripOfWindows<T, Window> windows(params, x, top, left, nothing);
#pragma unroll Window::kUnroll
      for (int k = 0; k < kStrip; ++k) {
        const int p = first + k;
        if (p >= params.y_extent[0]) break;
        T result = nothing;
        windows.visit(k, [&](T value, int, int) {
          if constexpr (kIsMax) {
            if (value > result || value != value) result = value;
          } else {
            result += value;
          }
        });
        if constexpr (!kIsMax) result /= divisor_of<kMode, T, Window>(params, top + k * Window::stride(params, 0), left);
        blend_into(params.blend, result, y + p * params.output_view.row);
      }
    }
  }
}

template <typename T, PoolingMode kMode, typename Window>
__device__ __forceinline__ void spread_tiles(const PlanarPoolingParams& params) {
  constexpr bool kIsMax = kMode == PoolingMode::kMax;
  extern __shared__ __align__(16) unsigned char shared[];
  const int per_channel = params.window_tile[0] * params.window_tile[1];
  T* const gradients = reinterpret_cast<T*>(shared);                                        // what each window passes on
  int32* const winners = reinterpret_cast<int32*>(gradients + params.tile[0] * per_channel);  // to whom: row * W + column
  const int width = params.x_extent[1];
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
      T received[kStrip];
#pragma unroll
      for (int k = 0; k < kStrip; ++k) received[k] = first + k < rows.high ? dy[(first + k) * params.dy_view.row] : T(0);
      const int first_top = first * Window::stride(params, 0) - params.before[0];
      const StripOfWindows<T, Window> places(params, x, first_top, left, -T(INFINITY));  // not loaded for an average: unused
#pragma unroll
      for (int k = 0; k < kStrip; ++k) {
        if (first + k >= rows.high) break;
        const int window = strip.c * c_step + (strip.row + k) * p_step + strip.column * q_step;
        const int top = first_top + k * Window::stride(params, 0);
        if constexpr (kIsMax) {
          T best = -T(INFINITY);
          int winner = max(top, 0) * width + max(left, 0);  // even if nothing is above minus infinity
          places.visit(k, [&](T value, int row, int column) {
            if (best == best && !(value <= best)) {  // greater, or the first NaN
              best = value;
              winner = row * width + column;
            }
          });
          gradients[window] = received[k];
          winners[window] = winner;
        } else {
          gradients[window] = received[k] / divisor_of<kMode, T, Window>(params, top, left);
        }
      }
    }
    __syncthreads();

    for (int i = threadIdx.x; i < params.places.strips; i += blockDim.x) {
      const Strip strip = strip_of(params.places, params.channels_last, i);
      const int c = corner.c + strip.c;
      const int column = corner.column + strip.column;
      if (c >= params.channels || column >= column_end) continue;
      T* dx = static_cast<T*>(params.output) + plane_offset(params.output_view, corner.n, c) + column * params.output_view.column;
      const Range over_column = windows_over<Window>(params, 1, column, column);
      const int windows = strip.c * c_step - rows.low * p_step - columns.low * q_step;
      const int first = corner.row + strip.row;
#pragma unroll Window::kUnroll
      for (int row = first; row < first + kStrip; ++row) {
        if (row >= row_end) break;
        const Range over_row = windows_over<Window>(params, 0, row, row);
        T result = T(0);
        visit_box<Window::kMostOver>(over_row, over_column, [&](int p, int q, bool inside) {
          const int window = inside ? windows + p * p_step + q * q_step : 0;
          const T gradient = gradients[window];
          const bool takes = inside && (!kIsMax || winners[window] == row * width + column);
          result += takes ? gradient : T(0);
        });
        blend_into(params.blend, result, dx + row * params.output_view.row);
      }
    }
    __syncthreads();  // before the next tile's windows overwrite this one's
  }
}

template <typename T, PoolingMode kMode, bool kForward, typename Window>
__device__ __forceinline__ void pool_or_spread(const PlanarPoolingParams& params) {
  if constexpr (kForward) {
    pool_tiles<T, kMode, Window>(params);
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
