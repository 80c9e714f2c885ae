// Cross-entropy of logits [N, K] with labels: a class for each row, or probabilities [N, K]. A warp or a block takes a row. A class
// outside 0..K-1, or the one that is ignored, makes loss and gradient 0.
//
// Forward reads each row once; backward too where it fits in registers, else twice.
#pragma once

#include "dnncore/softmax_row.cuh"

namespace dnncore {

// _PARAMS in cross_entropy.py. The output is loss [N] forward and dx [N, K] backward. Strides count elements.
struct CrossEntropyParams {
  Blend blend;
  const void* x;
  const void* labels;  // int32 [N], or of x's type [N, K]
  void* output;
  double smoothing;
  int64 rows;
  int64 classes;
  int64 ignored;  // a class, or -1
  int64 x_strides[2];
  int64 label_strides[2];   // the second only of probabilities
  int64 output_strides[2];  // the second only backward
  int32 probabilities;
  int32 wide_loss;  // forward: the loss has the compute type
};

// What a row's logits are compared with.
template <typename T>
class Target {
 public:
  using C = Compute<T>;

  __device__ __forceinline__ Target(const CrossEntropyParams& params, int64 row)
      : step_(params.label_strides[1]),
        classes_(params.classes),
        kept_part_(static_cast<C>(1.0 - params.smoothing)),
        shared_part_(static_cast<C>(params.smoothing / static_cast<double>(params.classes))),
        probabilities_(nullptr),
        label_(-1) {
    if (params.probabilities) {
      probabilities_ = static_cast<const T*>(params.labels) + row * params.label_strides[0];
    } else {
      label_ = static_cast<const int32*>(params.labels)[row * params.label_strides[0]];
      if (label_ == params.ignored) label_ = -1;
    }
  }

  __device__ __forceinline__ bool counts() const { return probabilities_ ? classes_ > 0 : label_ >= 0 && label_ < classes_; }
  __device__ __forceinline__ bool is_class() const { return !probabilities_; }
  __device__ __forceinline__ bool is_smooth() const { return shared_part_ != C(0); }
  __device__ __forceinline__ int64 label() const { return label_; }

  // A class's probability as it was given.
  __device__ __forceinline__ C given(int64 k) const {
    if (probabilities_) return widen(probabilities_[k * step_]);
    return k == label_ ? C(1) : C(0);
  }

  // Smoothed: a probability, and a sum over all classes whose values add up to `total`.
  __device__ __forceinline__ C at(int64 k) const { return smoothed(given(k), C(1)); }
  __device__ __forceinline__ C smoothed(C value, C total) const {
    return is_smooth() ? kept_part_ * value + shared_part_ * total : value;
  }

 private:
  int64 step_;
  int64 classes_;
  C kept_part_;
  C shared_part_;  // of each class
  const T* probabilities_;
  int64 label_;
};

template <typename C>
struct LogitAndProbability {
  C logit;
  C probability;
};

// loss = sum_k target[k] * (logsumexp(x) - x[k]), with the largest logit taken off both, so that a small loss is not lost beside it.
template <typename T, typename Team>
__device__ __forceinline__ Compute<T> cross_entropy_of(const CrossEntropyParams& params, const Target<T>& target, const T* x) {
  using C = Compute<T>;
  using Pair = LogitAndProbability<C>;
  Normaliser<C> part = empty_normaliser<C>();
  C weight = C(target.is_class()), picked = C(0), sum = C(0);
  const auto at = [&](int64 k) { return Pair{widen(x[k * params.x_strides[1]]), target.is_class() ? C(0) : target.given(k)}; };
  stream<Team>(params.classes, at, [&](int64, Pair pair) {
    include(part, pair.logit);
    sum += pair.logit;
    if (!target.is_class()) weight += pair.probability;
    if (pair.probability != C(0)) picked += pair.probability * pair.logit;  // else the logit may be minus infinity
  });
  const Normaliser<C> row = reduce<Team>(part);
  if (target.is_class()) {
    picked = widen(x[target.label() * params.x_strides[1]]);
  } else {
    weight = Team::template reduce<Sum>(weight);
    picked = Team::template reduce<Sum>(picked);
  }
  if (target.is_smooth()) {
    sum = Team::template reduce<Sum>(sum);
    picked = target.smoothed(picked, sum);
    weight = target.smoothed(weight, static_cast<C>(params.classes));
  }
  return weight * log(row.total) + (weight * row.shift - picked);
}

template <typename T, typename Team>
__device__ void cross_entropy_forward(const CrossEntropyParams& params) {
  using C = Compute<T>;
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const Target<T> target(params, row);
    const T* x = static_cast<const T*>(params.x) + row * params.x_strides[0];
    C loss = C(0);
    if (target.counts()) loss = cross_entropy_of<T, Team>(params, target, x);  // the same for the whole team
    if (Team::first() != 0) continue;
    if (params.wide_loss) {
      blend_into(params.blend, loss, static_cast<C*>(params.output) + row * params.output_strides[0]);
    } else {
      blend_into(params.blend, loss, static_cast<T*>(params.output) + row * params.output_strides[0]);
    }
  }
}

// The sum of a row's targets.
template <typename T, typename Team>
__device__ __forceinline__ Compute<T> weight_of(const CrossEntropyParams& params, const Target<T>& target) {
  using C = Compute<T>;
  if (target.is_class()) return C(1);
  C weight = C(0);
  for (int64 k = Team::first(); k < params.classes; k += Team::step()) weight += target.given(k);
  return target.smoothed(Team::template reduce<Sum>(weight), static_cast<C>(params.classes));
}

// kKept: a row fits in its team's registers.
template <typename T, typename Team, bool kKept>
__device__ void cross_entropy_backward(const CrossEntropyParams& params) {
  using C = Compute<T>;
  const int64 x_step = params.x_strides[1], dx_step = params.output_strides[1];
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const Target<T> target(params, row);
    const T* x = static_cast<const T*>(params.x) + row * params.x_strides[0];
    T* dx = static_cast<T*>(params.output) + row * params.output_strides[0];
    if (!target.counts()) {  // the same for the whole team
      for (int64 k = Team::first(); k < params.classes; k += Team::step()) blend_into(params.blend, C(0), dx + k * dx_step);
    } else if constexpr (kKept) {
      const int classes = static_cast<int>(params.classes);
      C values[Team::kKept];
      load_kept<Team>(classes, x, x_step, -C(INFINITY), values);
      const C shift = largest_kept<Team>(classes, values);
      C total = C(0);
      visit_kept<Team>(classes, [&](int i, int) { total += values[i] = exp(values[i] - shift); });
      const C factor = weight_of<T, Team>(params, target) / Team::template reduce<Sum>(total);
      Walk<Team, T> walk(dx, dx_step);
      visit_kept<Team>(classes, [&](int i, int k) {
        T* place = walk.next();
        if (k < classes) blend_into(params.blend, values[i] * factor - target.at(k), place);
      });
    } else {
      const auto x_at = [&](int64 k) { return widen(x[k * x_step]); };
      const Normaliser<C> normaliser = normaliser_of<Team, C>(params.classes, x_at);
      const C factor = weight_of<T, Team>(params, target) / normaliser.total;
      stream<Team>(params.classes, x_at, [&](int64 k, C value) {
        blend_into(params.blend, exp(value - normaliser.shift) * factor - target.at(k), dx + k * dx_step);
      });
    }
  }
}

}  // namespace dnncore
