// An optimizer's step on many parameters: w = alpha * direction + beta * w, where the direction comes from the gradient and from
// states that are kept for each weight. It is memory-bound, and most parameters of a net are small: one launch takes up to
// kMostTensors of them, whose addresses are in its parameters, cut into chunks of one size. A block takes a chunk, whichever
// tensor that is of, and so the large ones keep all multiprocessors busy and the small ones cost a block each.
//
//    blocks     [0][1][2][3]  [4]  [5]  [6][7]  ...      chunks of 8 packs of 16 bytes per thread
//    tensors    0             1    2    3                first_chunks = 0, 4, 5, 6, ...
//
// A thread has kAtOnce packs of each operand under way. Weights and states that are read may be those that are written: an element
// is read before it is written, by the same thread.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/common/pack.cuh"

namespace dnncore {

constexpr int kMostTensors = 56;     // _MOST_TENSORS in optimizer.py
constexpr int kOptimizerStates = 2;  // most that a rule has
constexpr int kChunkPacks = 8;       // _PACKS in optimizer.py
constexpr int kAtOnce = 2;

// Mirrored by _TENSOR in dnncore/cuda/optimizer.py; null where there is none.
struct OptimizerTensor {
  const void* gradient;
  const void* weight;  // read for the decay
  const void* old_states[kOptimizerStates];
  void* output;
  void* states[kOptimizerStates];
};

// Mirrored by _PARAMS in dnncore/cuda/optimizer.py.
struct OptimizerParams {
  Blend blend;
  double momentum;
  double momentum2;
  double epsilon;
  double decay;
  int64 sizes[kMostTensors];
  OptimizerTensor tensors[kMostTensors];
  int32 first_chunks[kMostTensors];
  int32 count;
  int32 nesterov;
};

// Rules: from the gradient and the old states to the new states and the direction.
template <typename C>
struct Momentum {
  static constexpr int kStates = 1;
  C momentum;
  bool nesterov;
  explicit __device__ Momentum(const OptimizerParams& params)
      : momentum(static_cast<C>(params.momentum)), nesterov(params.nesterov != 0) {}

  // Without momentum the velocity is the gradient, and nowhere kept.
  __device__ __forceinline__ C operator()(C gradient, C (&states)[kStates]) const {
    const C velocity = momentum * states[0] + gradient;
    states[0] = velocity;
    return nesterov ? gradient + momentum * velocity : velocity;
  }
};

template <typename C>
struct Adam {
  static constexpr int kStates = 2;
  C kept[kStates];
  C fresh[kStates];
  C epsilon;
  explicit __device__ Adam(const OptimizerParams& params)
      : kept{static_cast<C>(params.momentum), static_cast<C>(params.momentum2)},
        fresh{static_cast<C>(1.0 - params.momentum), static_cast<C>(1.0 - params.momentum2)},
        epsilon(static_cast<C>(params.epsilon)) {}

  __device__ __forceinline__ C operator()(C gradient, C (&states)[kStates]) const {
    states[0] = kept[0] * states[0] + fresh[0] * gradient;
    states[1] = kept[1] * states[1] + fresh[1] * gradient * gradient;
    return states[0] / (sqrt(states[1]) + epsilon);
  }
};

// The tensor that a block's chunk is of, the last one that begins no later.
__device__ __forceinline__ int tensor_of(const OptimizerParams& params, int chunk) {
  int found = 0;
#pragma unroll 1
  for (int next = params.count; next - found > 1;) {
    const int middle = (found + next) / 2;
    if (params.first_chunks[middle] <= chunk) {
      found = middle;
    } else {
      next = middle;
    }
  }
  return found;
}

// One parameter's step.
template <typename T, typename Rule>
struct Step {
  using C = Compute<T>;
  static constexpr int kStates = Rule::kStates;
  const Blend& blend;
  Rule rule;
  C decay;
  const T* gradient;
  const T* weight;
  const T* old_states[kStates];
  T* output;
  T* states[kStates];

  __device__ __forceinline__ Step(const OptimizerParams& params, const OptimizerTensor& tensor)
      : blend(params.blend),
        rule(params),
        decay(static_cast<C>(params.decay)),
        gradient(static_cast<const T*>(tensor.gradient)),
        weight(static_cast<const T*>(tensor.weight)),
        output(static_cast<T*>(tensor.output)) {
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      old_states[i] = static_cast<const T*>(tensor.old_states[i]);
      states[i] = static_cast<T*>(tensor.states[i]);
    }
  }

  __device__ __forceinline__ bool is_aligned() const {
    uint64 addresses = reinterpret_cast<uint64>(gradient) | reinterpret_cast<uint64>(weight) | reinterpret_cast<uint64>(output);
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      addresses |= reinterpret_cast<uint64>(old_states[i]) | reinterpret_cast<uint64>(states[i]);
    }
    return addresses % sizeof(Pack<T>) == 0;
  }

  // Pieces of kLanes elements, of which this thread takes the index-th, the one `stride` further on, and so on, as far as there
  // are any: all are loaded before the first is stored.
  template <int kPieces, int kLanes>
  __device__ __forceinline__ void take(int64 index, int64 stride, int64 end) const {
    using Piece = Vector<T, kLanes>;
    const auto load = [](const T* from, int64 at) { return from == nullptr ? Piece{} : reinterpret_cast<const Piece*>(from)[at]; };
    Piece gradients[kPieces] = {}, weights[kPieces] = {}, results[kPieces] = {}, kept[kStates][kPieces] = {};
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int64 at = index + k * stride;
      if (at >= end) continue;
      gradients[k] = load(gradient, at);
      weights[k] = load(weight, at);
      if (blend.beta != 0.0) results[k] = load(output, at);
#pragma unroll
      for (int i = 0; i < kStates; ++i) kept[i][k] = load(old_states[i], at);
    }
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int64 at = index + k * stride;
      if (at >= end) continue;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        C now[kStates];
#pragma unroll
        for (int i = 0; i < kStates; ++i) now[i] = widen(kept[i][k].at[lane]);
        const C direction = rule(widen(gradients[k].at[lane]) + decay * widen(weights[k].at[lane]), now);
        blend_into(blend, direction, &results[k].at[lane]);
#pragma unroll
        for (int i = 0; i < kStates; ++i) kept[i][k].at[lane] = narrow<T>(now[i]);
      }
      reinterpret_cast<Piece*>(output)[at] = results[k];
#pragma unroll
      for (int i = 0; i < kStates; ++i) {
        if (states[i] != nullptr) reinterpret_cast<Piece*>(states[i])[at] = kept[i][k];
      }
    }
  }
};

template <typename T, template <typename> typename Rule>
__device__ void optimizer_step(const OptimizerParams& params) {
  constexpr int kWidth = Pack<T>::kWidth;
  const int chunk = blockIdx.x, found = tensor_of(params, chunk);
  const Step<T, Rule<Compute<T>>> step(params, params.tensors[found]);
  const int64 size = params.sizes[found];
  const int64 packs = step.is_aligned() ? size / kWidth : 0;
  const int64 first = static_cast<int64>(chunk - params.first_chunks[found]) * kChunkPacks * blockDim.x;
  const int64 last = first + static_cast<int64>(kChunkPacks) * blockDim.x;
#pragma unroll 1
  for (int64 pack = first + threadIdx.x; pack < min(last, packs); pack += kAtOnce * blockDim.x) {
    step.template take<kAtOnce, kWidth>(pack, blockDim.x, packs);
  }
#pragma unroll 1
  for (int64 index = max(first, packs) * kWidth + threadIdx.x; index < min(last * kWidth, size); index += blockDim.x) {
    step.template take<1, 1>(index, blockDim.x, size);
  }
}

}  // namespace dnncore
