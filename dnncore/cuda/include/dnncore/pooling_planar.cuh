// Pooling over two spatial dimensions (a single one comes with H = 1), a tile of the output at a time. A thread takes a strip of
// kStrip rows in one column, so that what depends on the column is worked out once. The windows that networks use, 3x3 and 2x2 with
// stride 2, are unrolled: all loads of a strip's windows are under way at once, and rows that two of them share are loaded once.
// pooling_tiles.cuh has the picture.
//
// Backward is a gather, without atomics: a thread adds up what the windows over its strip pass to each place, and reads
// each of those windows once. Where the forward pass kept the indices, it reads them and dy from memory. Otherwise the
// block first works out, in shared memory and once for every window over its tile, what the window passes on and, for a
// maximum, to which place. The maximum is searched for in x again: of equal ones the first in row-major order wins, and
// the first NaN before everything else. y would only tell how large it is, and stays unread.
#pragma once

#include "dnncore/pooling_tiles.cuh"

namespace dnncore {

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
