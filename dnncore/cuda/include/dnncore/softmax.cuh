// Softmax over rows, y = exp(x - max) / sum(exp(x - max)) or its logarithm, and its gradient. A row is what is
// normalised together, and a launch has rows * length elements. The host describes a row's start (`row_views`) and its
// elements (`element_views`) for each tensor. A block or a warp takes a row where rows are long; a thread takes one
// where they are short, or where neighbouring rows are neighbours in memory. Each element is written by the thread that
// read it, so an output may be an input. It is memory-bound, so rows are read as seldom as possible:
//
//    kept         fits in its team's registers (backward, a block adds shared memory)         read once
//    streamed     longer; forward, maximum and sum come from one pass                         read twice
//    scattered    over several dimensions; forward, maximum, sum, output            read three times; backward, twice
#pragma once

#include "dnncore/ptx/async_copy.cuh"
#include "dnncore/softmax_row.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/softmax.py. Forward reads x; backward reads y and dy; both write `output`.
struct SoftmaxParams {
  Blend blend;
  const void* inputs[2];
  void* output;
  int64 rows;
  int64 length;
  TensorView row_views[3];  // inputs, then the output
  TensorView element_views[3];
  int32 kind;       // a SoftmaxKind: a switch costs nothing beside the exponentials
  int32 has_packs;  // in all tensors the elements of a row are neighbours and fill whole packs
};

enum class SoftmaxKind { kFast, kAccurate, kLog };

// A row that is kept, whose elements lie in one dimension.
template <typename T, typename Team>
__device__ __forceinline__ void softmax_kept(const SoftmaxParams& params, const T* x, T* y) {
  using C = Compute<T>;
  const auto kind = static_cast<SoftmaxKind>(params.kind);
  const Span<T, Team> span(params.length, params.has_packs && is_aligned(x) && is_aligned(y));
  C values[kKept<T>];
  load(span, x, params.element_views[0].strides[0], narrow<T>(-C(INFINITY)), values);

  const C shift = kind == SoftmaxKind::kFast ? C(0) : Team::template reduce<Maximum>(largest_of(span, values));
  C total = C(0);
  visit(span, [&](int k) {
    const C shifted = values[k] - shift;
    const C exponential = exp(shifted);
    total += exponential;
    values[k] = kind == SoftmaxKind::kLog ? shifted : exponential;
  });
  total = Team::template reduce<Sum>(total);

  const C factor = kind == SoftmaxKind::kLog ? log(total) : C(1) / total;
  store(span, params.blend, y, params.element_views[2].strides[0], [&](int pack, auto& results) {
#pragma unroll
    for (int lane = 0; lane < span.kWidth; ++lane) {
      const C value = values[pack * span.kWidth + lane];
      results[lane] = kind == SoftmaxKind::kLog ? value - factor : value * factor;
    }
  });
}

// A row in one dimension, span by span.
template <typename T, typename Team>
__device__ __forceinline__ void softmax_streamed(const SoftmaxParams& params, const T* x, T* y) {
  using C = Compute<T>;
  const auto kind = static_cast<SoftmaxKind>(params.kind);
  const bool is_packed = params.has_packs && is_aligned(x) && is_aligned(y);
  const int64 x_stride = params.element_views[0].strides[0], y_stride = params.element_views[2].strides[0];
  const T beyond = narrow<T>(-C(INFINITY));
  C values[kKept<T>];
  Normaliser<C> row = empty_normaliser<C>();
  if (kind == SoftmaxKind::kFast) row.shift = C(0);
  for_each_span<T, Team, false>(params.length, is_packed, [&](int64 start, const Span<T, Team>& span) {
    load(span, x + start * x_stride, x_stride, beyond, values);
    if (kind != SoftmaxKind::kFast) return include(row, span, values);
    visit(span, [&](int k) { row.total += exp(values[k]); });
  });
  row = reduce<Team>(row);
  const C factor = kind == SoftmaxKind::kLog ? log(row.total) : C(1) / row.total;
  for_each_span<T, Team, false>(params.length, is_packed, [&](int64 start, const Span<T, Team>& span) {
    load(span, x + start * x_stride, x_stride, beyond, values);
    store(span, params.blend, y + start * y_stride, y_stride, [&](int pack, auto& results) {
#pragma unroll
      for (int lane = 0; lane < span.kWidth; ++lane) {
        const C shifted = values[pack * span.kWidth + lane] - row.shift;
        results[lane] = kind == SoftmaxKind::kLog ? shifted - factor : exp(shifted) * factor;
      }
    });
  });
}

// A row over several dimensions, element by element: their indices are work enough without batches of loads.
template <typename T, typename Team>
__device__ __forceinline__ void softmax_scattered(const SoftmaxParams& params, const T* x, T* y) {
  using C = Compute<T>;
  const auto kind = static_cast<SoftmaxKind>(params.kind);
  const auto for_each = [&](const auto& use) {
    for (int64 i = Team::member(); i < params.length; i += Team::members()) use(i, widen(x[offset_of(params.element_views[0], i)]));
  };
  C shift = C(0), total = C(0);
  if (kind != SoftmaxKind::kFast) {
    shift = Maximum::identity<C>();
    for_each([&](int64, C value) { shift = Maximum{}(shift, value); });
    shift = Team::template reduce<Maximum>(shift);
  }
  for_each([&](int64, C value) { total += exp(value - shift); });
  total = Team::template reduce<Sum>(total);
  const C factor = kind == SoftmaxKind::kLog ? log(total) : C(1) / total;
  for_each([&](int64 i, C value) {
    const C shifted = value - shift;
    T* place = y + offset_of(params.element_views[2], i);
    blend_into(params.blend, kind == SoftmaxKind::kLog ? shifted - factor : exp(shifted) * factor, place);
  });
}

template <typename T, typename Team, bool kIsKept>
__device__ void softmax_forward(const SoftmaxParams& params) {
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const T* x = static_cast<const T*>(params.inputs[0]) + offset_of(params.row_views[0], row);
    T* y = static_cast<T*>(params.output) + offset_of(params.row_views[2], row);
    if constexpr (kIsKept) {
      softmax_kept<T, Team>(params, x, y);
    } else if (params.element_views[2].ndim == 1) {
      softmax_streamed<T, Team>(params, x, y);
    } else {
      softmax_scattered<T, Team>(params, x, y);
    }
  }
}

// dx = y * (dy - sum(y * dy)); for the logarithm dx = dy - exp(y) * sum(dy).
template <typename C>
__device__ __forceinline__ C softmax_term(bool is_log, C y, C dy) {
  return is_log ? dy : y * dy;
}

template <typename C>
__device__ __forceinline__ C softmax_gradient(bool is_log, C y, C dy, C total) {
  return is_log ? dy - exp(y) * total : y * (dy - total);
}

// Where a member keeps its packs of dy: in registers beside those of y or, for a block, whose threads have fewer, in
// shared memory.
template <typename T, typename Team>
class Gradients {
 public:
  __device__ __forceinline__ void begin(const Span<T, Team>& span, const T* dy, int64 stride) { load(span, dy, stride, T{}, packs_); }
  __device__ __forceinline__ void wait() const {}
  __device__ __forceinline__ const PackWords& operator[](int pack) const { return packs_[pack]; }

 private:
  PackWords packs_[kPacks<T>];
};

template <typename T>
class Gradients<T, BlockPerRow> {
 public:
  __device__ __forceinline__ Gradients() {
    extern __shared__ __align__(16) unsigned char shared[];
    packs_ = reinterpret_cast<PackWords*>(shared) + threadIdx.x;
  }
  __device__ __forceinline__ void begin(const Span<T, BlockPerRow>& span, const T* dy, int64 stride) {
    __syncwarp();  // the compiler moves no read of the old contents past it
    RowWalk<BlockPerRow, const T> walk(dy, stride);
#pragma unroll
    for (int pack = 0; pack < kPacks<T>; ++pack) {
      if (!span.has(pack)) break;
      PackWords* place = packs_ + pack * blockDim.x;
      if (span.is_packed) {
        copy_async(place, reinterpret_cast<const PackWords*>(dy) + (pack * blockDim.x + threadIdx.x), span.index(pack, 0) < span.length);
        continue;
      }
      Pack<T> loaded{};
#pragma unroll
      for (int lane = 0; lane < span.kWidth; ++lane) {
        const T* element = walk.next();
        if (span.index(pack, lane) < span.length) loaded.lanes[lane] = *element;
      }
      *place = words_of(loaded);
    }
    commit_copies();
  }
  __device__ __forceinline__ void wait() const { wait_for_copies<0>(); }  // no barrier: a thread reads what it wrote
  __device__ __forceinline__ PackWords operator[](int pack) const { return packs_[pack * blockDim.x]; }

 private:
  PackWords* packs_;
};

// A row in one dimension, span by span. kIsKept: it is one span, which the second pass finds where the first left it.
template <typename T, typename Team, bool kIsKept>
__device__ __forceinline__ void softmax_backward_line(const SoftmaxParams& params, const T* y, const T* dy, T* dx) {
  using C = Compute<T>;
  using Row = Span<T, Team>;
  const bool is_log = static_cast<SoftmaxKind>(params.kind) == SoftmaxKind::kLog;
  const bool is_packed = params.has_packs && is_aligned(y) && is_aligned(dy) && is_aligned(dx);
  const int64 y_stride = params.element_views[0].strides[0], dy_stride = params.element_views[1].strides[0];
  const int64 dx_stride = params.element_views[2].strides[0];
  Gradients<T, Team> gradients;
  PackWords results[kPacks<T>];
  const auto load_both = [&](int64 start, const Row& span) {
    gradients.begin(span, dy + start * dy_stride, dy_stride);
    load(span, y + start * y_stride, y_stride, T{}, results);
    gradients.wait();
  };
  C total = C(0);
  for_each_span<T, Team, kIsKept>(params.length, is_packed, [&](int64 start, const Row& span) {
    load_both(start, span);
#pragma unroll
    for (int pack = 0; pack < kPacks<T>; ++pack) {
      if (!span.has(pack)) break;
      const PackWords result = results[pack], gradient = gradients[pack];
#pragma unroll
      for (int lane = 0; lane < Row::kWidth; ++lane) {
        total += softmax_term(is_log, lane_of<T>(result, lane), lane_of<T>(gradient, lane));
      }
    }
  });
  total = Team::template reduce<Sum>(total);
  for_each_span<T, Team, kIsKept>(params.length, is_packed, [&](int64 start, const Row& span) {
    if constexpr (!kIsKept) load_both(start, span);
    store(span, params.blend, dx + start * dx_stride, dx_stride, [&](int pack, auto& values) {
      const PackWords result = results[pack], gradient = gradients[pack];
      const auto set = [&](bool is_log) {
#pragma unroll
        for (int lane = 0; lane < Row::kWidth; ++lane) {
          values[lane] = softmax_gradient(is_log, lane_of<T>(result, lane), lane_of<T>(gradient, lane), total);
        }
      };
      is_log ? set(true) : set(false);  // one branch per pack rather than per lane
    });
  });
}

template <typename T, typename Team>
__device__ __forceinline__ void softmax_backward_scattered(const SoftmaxParams& params, const T* y, const T* dy, T* dx) {
  using C = Compute<T>;
  const bool is_log = static_cast<SoftmaxKind>(params.kind) == SoftmaxKind::kLog;
  const auto for_each = [&](const auto& use) {
    for (int64 i = Team::member(); i < params.length; i += Team::members()) {
      use(i, widen(y[offset_of(params.element_views[0], i)]), widen(dy[offset_of(params.element_views[1], i)]));
    }
  };
  C total = C(0);
  for_each([&](int64, C result, C gradient) { total += softmax_term(is_log, result, gradient); });
  total = Team::template reduce<Sum>(total);
  for_each([&](int64 i, C result, C gradient) {
    blend_into(params.blend, softmax_gradient(is_log, result, gradient, total), dx + offset_of(params.element_views[2], i));
  });
}

template <typename T, typename Team, bool kIsKept>
__device__ void softmax_backward(const SoftmaxParams& params) {
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const T* y = static_cast<const T*>(params.inputs[0]) + offset_of(params.row_views[0], row);
    const T* dy = static_cast<const T*>(params.inputs[1]) + offset_of(params.row_views[1], row);
    T* dx = static_cast<T*>(params.output) + offset_of(params.row_views[2], row);
    if (kIsKept || params.element_views[2].ndim == 1) {
      softmax_backward_line<T, Team, kIsKept>(params, y, dy, dx);
    } else {
      softmax_backward_scattered<T, Team>(params, y, dy, dx);
    }
  }
}

}  // namespace dnncore
