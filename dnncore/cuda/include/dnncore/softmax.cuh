// Softmax over rows: a row is what is normalised together, and a launch has rows * length elements.
//
// The host describes a row's start (over `row_view`) and its elements (over `element_view`) for each tensor. A block or a warp takes
// a row where rows are long; a thread takes one where they are short, or where neighbouring rows are neighbours in memory. A row
// that fits in its team's registers is read once; a longer one twice, forward (its maximum and its sum come from one pass) and
// backward: kernels of their own, because they need few registers. Each element is written by the thread that read it, so that an
// output may be an input.
#pragma once

#include "dnncore/softmax_row.cuh"

namespace dnncore {

// _PARAMS in softmax.py. Forward reads x; backward reads y and dy; both write `output`.
struct SoftmaxParams {
  Blend blend;
  const void* inputs[2];
  void* output;
  int64 rows;
  int64 length;
  TensorView row_views[3];  // inputs, then the output
  TensorView element_views[3];
  int32 kind;  // a SoftmaxKind: a switch costs nothing beside the exponentials
};

enum class SoftmaxKind { kFast, kAccurate, kLog };

// Rows that are kept have their elements in one dimension.
template <typename T, typename Team>
__device__ __forceinline__ void softmax_kept(const SoftmaxParams& params, const T* x, T* y) {
  using C = Compute<T>;
  const auto kind = static_cast<SoftmaxKind>(params.kind);
  const int length = static_cast<int>(params.length);
  C values[Team::kKept];
  load_kept<Team>(length, x, params.element_views[0].strides[0], -C(INFINITY), values);

  const C shift = kind == SoftmaxKind::kFast ? C(0) : largest_kept<Team>(length, values);
  C total = C(0);
  visit_kept<Team>(length, [&](int k, int) {
    const C shifted = values[k] - shift;
    const C exponential = exp(shifted);
    total += exponential;
    values[k] = kind == SoftmaxKind::kLog ? shifted : exponential;
  });
  total = Team::template reduce<Sum>(total);

  const C factor = kind == SoftmaxKind::kLog ? log(total) : C(1) / total;
  Walk<Team, T> walk(y, params.element_views[2].strides[0]);
  visit_kept<Team>(length, [&](int k, int i) {
    const C value = kind == SoftmaxKind::kLog ? values[k] - factor : values[k] * factor;
    T* place = walk.next();
    if (i < length) blend_into(params.blend, value, place);
  });
}

// Where a row's elements lie: with one distance between them, or over several dimensions, which is work enough without batches.
struct Line {
  static constexpr int kLoads = kBatch;
  int64 stride;
  explicit __device__ __forceinline__ Line(const TensorView& view) : stride(view.strides[0]) {}
  __device__ __forceinline__ int64 operator()(int64 i) const { return i * stride; }
};

struct Dimensions {
  static constexpr int kLoads = 1;
  const TensorView& view;
  explicit __device__ __forceinline__ Dimensions(const TensorView& elements) : view(elements) {}
  __device__ __forceinline__ int64 operator()(int64 i) const { return offset_of(view, i); }
};

template <typename T, typename Team, typename Elements>
__device__ __forceinline__ void softmax_streamed(const SoftmaxParams& params, const T* x, T* y) {
  using C = Compute<T>;
  const auto kind = static_cast<SoftmaxKind>(params.kind);
  const Elements x_elements(params.element_views[0]), y_elements(params.element_views[2]);
  const auto x_at = [&](int64 i) { return widen(x[x_elements(i)]); };
  Normaliser<C> row{C(0), C(0)};
  if (kind == SoftmaxKind::kFast) {
    stream<Team, Elements::kLoads>(params.length, x_at, [&](int64, C value) { row.total += exp(value); });
    row.total = Team::template reduce<Sum>(row.total);
  } else {
    row = normaliser_of<Team, C, Elements::kLoads>(params.length, x_at);
  }
  const C factor = kind == SoftmaxKind::kLog ? log(row.total) : C(1) / row.total;
  stream<Team, Elements::kLoads>(params.length, x_at, [&](int64 i, C value) {
    const C shifted = value - row.shift;
    blend_into(params.blend, kind == SoftmaxKind::kLog ? shifted - factor : exp(shifted) * factor, y + y_elements(i));
  });
}

template <typename T, typename Team, bool kKept>
__device__ void softmax_forward(const SoftmaxParams& params) {
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const T* x = static_cast<const T*>(params.inputs[0]) + offset_of(params.row_views[0], row);
    T* y = static_cast<T*>(params.output) + offset_of(params.row_views[2], row);
    if constexpr (kKept) {
      softmax_kept<T, Team>(params, x, y);
    } else if (params.element_views[2].ndim == 1) {
      softmax_streamed<T, Team, Line>(params, x, y);
    } else {
      softmax_streamed<T, Team, Dimensions>(params, x, y);
    }
  }
}

// dx = y * (dy - sum(y * dy)), and for the logarithm dx = dy - exp(y) * sum(dy).
template <typename C>
__device__ __forceinline__ C softmax_term(bool is_log, C y, C dy) {
  return is_log ? dy : y * dy;
}

template <typename C>
__device__ __forceinline__ C softmax_gradient(bool is_log, C y, C dy, C total) {
  return is_log ? dy - exp(y) * total : y * (dy - total);
}

template <typename T, typename Team>
__device__ __forceinline__ void softmax_backward_kept(const SoftmaxParams& params, const T* y, const T* dy, T* dx) {
  using C = Compute<T>;
  const bool is_log = static_cast<SoftmaxKind>(params.kind) == SoftmaxKind::kLog;
  const int length = static_cast<int>(params.length);
  C results[Team::kKept], gradients[Team::kKept];
  load_kept<Team>(length, y, params.element_views[0].strides[0], C(0), results);
  load_kept<Team>(length, dy, params.element_views[1].strides[0], C(0), gradients);
  C total = C(0);
  visit_kept<Team>(length, [&](int k, int) { total += softmax_term(is_log, results[k], gradients[k]); });
  total = Team::template reduce<Sum>(total);
  Walk<Team, T> walk(dx, params.element_views[2].strides[0]);
  visit_kept<Team>(length, [&](int k, int i) {
    const C value = softmax_gradient(is_log, results[k], gradients[k], total);
    T* place = walk.next();
    if (i < length) blend_into(params.blend, value, place);
  });
}

template <typename C>
struct ResultAndGradient {
  C y;
  C dy;
};

template <typename T, typename Team, typename Elements>
__device__ __forceinline__ void softmax_backward_streamed(const SoftmaxParams& params, const T* y, const T* dy, T* dx) {
  using C = Compute<T>;
  using Pair = ResultAndGradient<C>;
  const bool is_log = static_cast<SoftmaxKind>(params.kind) == SoftmaxKind::kLog;
  const Elements y_elements(params.element_views[0]), dy_elements(params.element_views[1]), dx_elements(params.element_views[2]);
  const auto at = [&](int64 i) { return Pair{widen(y[y_elements(i)]), widen(dy[dy_elements(i)])}; };
  C total = C(0);
  stream<Team, Elements::kLoads>(params.length, at, [&](int64, Pair pair) { total += softmax_term(is_log, pair.y, pair.dy); });
  total = Team::template reduce<Sum>(total);
  stream<Team, Elements::kLoads>(params.length, at, [&](int64 i, Pair pair) {
    blend_into(params.blend, softmax_gradient(is_log, pair.y, pair.dy, total), dx + dx_elements(i));
  });
}

template <typename T, typename Team, bool kKept>
__device__ void softmax_backward(const SoftmaxParams& params) {
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const T* y = static_cast<const T*>(params.inputs[0]) + offset_of(params.row_views[0], row);
    const T* dy = static_cast<const T*>(params.inputs[1]) + offset_of(params.row_views[1], row);
    T* dx = static_cast<T*>(params.output) + offset_of(params.row_views[2], row);
    if constexpr (kKept) {
      softmax_backward_kept<T, Team>(params, y, dy, dx);
    } else if (params.element_views[2].ndim == 1) {
      softmax_backward_streamed<T, Team, Line>(params, y, dy, dx);
    } else {
      softmax_backward_streamed<T, Team, Dimensions>(params, y, dy, dx);
    }
  }
}

}  // namespace dnncore
