// Cross-entropy of logits [N, K] with labels, which are a class per row or probabilities [N, K], and its gradient. A
// warp or a block takes a row (softmax_row.cuh). Forward reads each row once; backward reads it once where it fits in
// registers, else twice; probabilities take one more pass.
//
//    loss  = sum over k  target[k] * (logsumexp(x) - x[k])
//    dx[k] = softmax(x)[k] * sum(target) - target[k]
//
// A class outside 0..K-1, or the ignored one, makes loss and gradient 0. Its row is read all the same, because a row
// whose loads waited for its label would take twice as long.
#pragma once

#include "dnncore/softmax_row.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/cross_entropy.py. The output is loss [N] forward and dx [N, K] backward. Strides
// count elements.
struct CrossEntropyParams {
  Blend blend;
  const void* x;
  const void* labels;  // int32 [N], or of x's type [N, K]
  void* output;
  double kept_part;    // of a label's probability, once it is smoothed
  double shared_part;  // what each class gets instead
  int64 rows;
  int64 classes;
  int64 ignored;  // a class, or -1
  int64 x_strides[2];
  int64 label_strides[2];   // the second for probabilities only
  int64 output_strides[2];  // the second for backward only
  int32 probabilities;
  int32 wide_loss;  // forward: the loss has the compute type
  int32 has_packs;  // in all tensors [N, K] the elements of a row are neighbours and fill whole packs
};

// What a row's logits are compared with.
template <typename T>
class Target {
 public:
  using C = Compute<T>;

  __device__ __forceinline__ Target(const CrossEntropyParams& params, int64 row)
      : step_(params.label_strides[1]),
        classes_(params.classes),
        ignored_(params.ignored),
        kept_part_(static_cast<C>(params.kept_part)),
        shared_part_(static_cast<C>(params.shared_part)),
        probabilities_(nullptr),
        label_(-1) {
    if (params.probabilities) {
      probabilities_ = static_cast<const T*>(params.labels) + row * params.label_strides[0];
    } else {
      label_ = static_cast<const int32*>(params.labels)[row * params.label_strides[0]];
    }
  }

  __device__ __forceinline__ bool counts() const {
    return probabilities_ ? classes_ > 0 : label_ >= 0 && label_ < classes_ && label_ != ignored_;
  }
  __device__ __forceinline__ bool is_class() const { return !probabilities_; }
  __device__ __forceinline__ bool is_smooth() const { return shared_part_ != C(0); }
  // nullptr counts as aligned.
  __device__ __forceinline__ bool is_aligned() const { return dnncore::is_aligned(probabilities_); }
  __device__ __forceinline__ int64 label() const { return label_; }

  // Call use(k, p) for this member's classes and their probabilities as they were given.
  template <typename Team, typename Use>
  __device__ __forceinline__ void for_each_given(const Use& use) const {
#pragma unroll 4
    for (int64 k = Team::member(); k < classes_; k += Team::members()) use(k, widen(probabilities_[k * step_]));
  }

  // Apply label smoothing to a probability (total 1), or to a sum of probabilities times values that add up to `total`
  // over all classes.
  __device__ __forceinline__ C smoothed(C value, C total) const {
    return is_smooth() ? kept_part_ * value + shared_part_ * total : value;
  }

  // Which of this member's elements of the span that begins at class `start` belongs to the label, or -1.
  template <typename Team>
  __device__ __forceinline__ int label_in(const Span<T, Team>& span, int64 start) const {
    const int64 distance = label_ - start;
    return distance < span.length ? span.mine(static_cast<int>(distance)) : -1;
  }

  // Subtract the smoothed probabilities from the lanes of a pack of that span; `label` is what label_in returned.
  template <typename Team>
  __device__ __forceinline__ void take_off(
      const Span<T, Team>& span, int64 start, int label, int pack, C (&values)[Pack<T>::kWidth]
  ) const {
    if (is_class()) {
      const C given = smoothed(C(1), C(1)), other = smoothed(C(0), C(1));
#pragma unroll
      for (int lane = 0; lane < span.kWidth; ++lane) values[lane] -= pack * span.kWidth + lane == label ? given : other;
      return;
    }
    Pack<T> given{};
    if (!span.is_packed) {
#pragma unroll
      for (int lane = 0; lane < span.kWidth; ++lane) {
        const int i = span.index(pack, lane);
        if (i < span.length) given.lanes[lane] = probabilities_[(start + i) * step_];
      }
    } else if (span.index(pack, 0) < span.length) {
      given = *reinterpret_cast<const Pack<T>*>(probabilities_ + start + span.index(pack, 0));
    }
#pragma unroll
    for (int lane = 0; lane < span.kWidth; ++lane) values[lane] -= smoothed(widen(given.lanes[lane]), C(1));
  }

 private:
  int64 step_;
  int64 classes_;
  int64 ignored_;
  C kept_part_;
  C shared_part_;  // per class
  const T* probabilities_;
  int64 label_;  // used as late as possible, so that the loads of x are issued before it has arrived
};

// loss = sum_k target[k] * (logsumexp(x) - x[k]), with the largest logit subtracted from both, so that a small loss
// keeps its digits.
template <typename T, typename Team>
__device__ __forceinline__ Compute<T> cross_entropy_of(const CrossEntropyParams& params, const Target<T>& target, const T* x) {
  using C = Compute<T>;
  using Row = Span<T, Team>;
  const int64 x_step = params.x_strides[1];
  const bool is_packed = params.has_packs && is_aligned(x);
  Normaliser<C> part = empty_normaliser<C>();
  C weight = C(0), picked = C(0), sum = C(0);
  for_each_span<T, Team, false>(params.classes, is_packed, [&](int64 start, const Row& span) {
    C values[kKept<T>];
    load(span, x + start * x_step, x_step, narrow<T>(-C(INFINITY)), values);
    include(part, span, values);
    if (target.is_smooth()) visit_inside(span, [&](int k) { sum += values[k]; });
  });
  const Normaliser<C> row = reduce<Team>(part);
  if (target.is_class()) {
    weight = C(1);
    if (target.counts()) picked = widen(x[target.label() * x_step]);
  } else {
    target.template for_each_given<Team>([&](int64 k, C probability) {
      weight += probability;
      if (probability != C(0)) picked += probability * widen(x[k * x_step]);  // the logit may be minus infinity
    });
    weight = Team::template reduce<Sum>(weight);
    picked = Team::template reduce<Sum>(picked);
  }
  if (target.is_smooth()) {
    sum = Team::template reduce<Sum>(sum);
    picked = target.smoothed(picked, sum);
    weight = target.smoothed(weight, static_cast<C>(params.classes));
  }
  return target.counts() ? weight * log(row.total) + (weight * row.shift - picked) : C(0);
}

template <typename T, typename Team>
__device__ void cross_entropy_forward(const CrossEntropyParams& params) {
  using C = Compute<T>;
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const Target<T> target(params, row);
    const C loss = cross_entropy_of<T, Team>(params, target, static_cast<const T*>(params.x) + row * params.x_strides[0]);
    if (Team::member() != 0) continue;
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
  target.template for_each_given<Team>([&](int64, C probability) { weight += probability; });
  return target.smoothed(Team::template reduce<Sum>(weight), static_cast<C>(params.classes));
}

// kIsKept: a row fits in its team's registers.
template <typename T, typename Team, bool kIsKept>
__device__ void cross_entropy_backward(const CrossEntropyParams& params) {
  using C = Compute<T>;
  using Row = Span<T, Team>;
  const int64 x_step = params.x_strides[1], dx_step = params.output_strides[1];
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const Target<T> target(params, row);
    const T* x = static_cast<const T*>(params.x) + row * params.x_strides[0];
    T* dx = static_cast<T*>(params.output) + row * params.output_strides[0];
    const bool is_packed = params.has_packs && is_aligned(x) && is_aligned(dx) && target.is_aligned();
    const C weight = weight_of<T, Team>(params, target);
    C values[kKept<T>];
    Normaliser<C> normaliser = empty_normaliser<C>();
    for_each_span<T, Team, kIsKept>(params.classes, is_packed, [&](int64 start, const Row& span) {
      load(span, x + start * x_step, x_step, narrow<T>(-C(INFINITY)), values);
      if constexpr (!kIsKept) return include(normaliser, span, values);
      normaliser.shift = Team::template reduce<Maximum>(largest_of(span, values));
      visit(span, [&](int k) { normaliser.total += values[k] = exp(values[k] - normaliser.shift); });
      normaliser.total = Team::template reduce<Sum>(normaliser.total);
    });
    if constexpr (!kIsKept) normaliser = reduce<Team>(normaliser);
    const C factor = weight / normaliser.total;
    const bool counts = target.counts();
    for_each_span<T, Team, kIsKept>(params.classes, is_packed, [&](int64 start, const Row& span) {
      if constexpr (!kIsKept) load(span, x + start * x_step, x_step, narrow<T>(-C(INFINITY)), values);
      const int label = target.label_in(span, start);
      store(span, params.blend, dx + start * dx_step, dx_step, [&](int pack, auto& gradients) {
#pragma unroll
        for (int lane = 0; lane < Row::kWidth; ++lane) {
          const C value = values[pack * Row::kWidth + lane];
          gradients[lane] = factor * (kIsKept ? value : exp(value - normaliser.shift));
        }
        if (counts) return target.take_off(span, start, label, pack, gradients);
#pragma unroll
        for (C& gradient : gradients) gradient = C(0);  // whatever the logits are
      });
    });
  }
}

}  // namespace dnncore
