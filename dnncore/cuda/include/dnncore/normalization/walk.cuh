// Tensors whose packs are all whole: the packed dimension has neighbours, as many as fill its packs, every other stride
// is a number of packs, and x, dy and the output lie alike (`_lies_whole` in dnncore/cuda/normalization/frame.py; the
// launcher has checked the addresses). Packs are then loaded as they are, several before the first is taken apart, and
// a thread goes from one pack to its next by adding instead of dividing.
//
//                inner 0   1   2        the packs of a group, 3 to an inner dimension, and which of a team's 4 threads
//    outer 0           0   1   2        takes each: its next one lies 4 / 3 = 1 further in the outer dimension and
//    outer 1           3   0   1        4 % 3 = 1 in the inner one, where it may wrap and carry into the outer one
//    outer 2           2   3   0
#pragma once

#include "dnncore/normalization/totals.cuh"

namespace dnncore {

// Sixteen bytes as they come: taking them apart where they are loaded would wait for them there.
template <typename T>
__device__ __forceinline__ uint4 load_raw(const T* place) {
  return *reinterpret_cast<const uint4*>(place);
}

template <typename T>
__device__ __forceinline__ void take_apart(const uint4& raw, Compute<T> (&values)[Pack<T>::kWidth]) {
  const Pack<T> pack = reinterpret_cast<const Pack<T>&>(raw);
#pragma unroll
  for (int lane = 0; lane < Pack<T>::kWidth; ++lane) values[lane] = widen(pack.lanes[lane]);
}

// A thread's packs of its task, one after another: where the next one is, counted from where the group begins, in x
// (and dy and the output), in scale and bias, and in mean and inv_std.
class PackWalk {
 public:
  template <typename T>
  __device__ __forceinline__ PackWalk(const NormalizationParams& params, const Team& team, const Task<T>& task) {
    const int32 begin = static_cast<int32>(task.begin) + team.lane, end = static_cast<int32>(task.end);
    left_ = begin < end ? (end - begin + team.lanes - 1) >> (__ffs(team.lanes) - 1) : 0;  // lanes are a power of two
    const SmallQuotientRemainder first = divide(begin, params.walk.inner);
    inner_ = first.remainder;
#pragma unroll
    for (int i = 0; i < kWalkedOperands; ++i) {
      at_[i] = first.quotient * params.walk.strides[0][i] + first.remainder * params.walk.strides[1][i];
    }
  }

  __device__ __forceinline__ int32 left() const { return left_; }
  __device__ __forceinline__ int32 at(Walked operand) const { return at_[operand]; }

  // Go on to the next pack; from the last one, stay.
  __device__ __forceinline__ void next(const NormalizationParams& params) {
    const bool goes = --left_ > 0;
    inner_ += params.walk.inner_step;
    const bool wraps = inner_ >= params.walk.inner.value;
    inner_ -= wraps ? params.walk.inner.value : 0;
#pragma unroll
    for (int i = 0; i < kWalkedOperands; ++i) {
      const int32 step = wraps ? params.walk.steps[1][i] : params.walk.steps[0][i];
      at_[i] += goes ? step : 0;
    }
  }

 private:
  int32 left_;
  int32 inner_;
  int32 at_[kWalkedOperands];
};

// A statistic of a group; null where there is none.
template <typename C>
__device__ __forceinline__ const C* find_statistic(const NormalizationParams& params, Operand operand, const int64 (&at)[kOperands]) {
  const C* place = static_cast<const C*>(params.operands[operand]);
  return place == nullptr ? nullptr : place + at[operand];
}

// One value of an operand that no thread writes.
template <typename S>
__device__ __forceinline__ Compute<S> load_constant(const S* place) {
  if constexpr (sizeof(S) < sizeof(Compute<S>)) {
    return widen(S{__ldg(&place->bits)});
  } else {
    return __ldg(place);
  }
}

// The lanes of a parameter or statistic that is stored in type S: a pack has one value for all of them, or neighbours.
template <typename S, int kWidth>
__device__ __forceinline__ void load_varying(
    Compute<S> (&values)[kWidth], const S* place, int32 offset, int64 step, Compute<S> otherwise
) {
  using C = Compute<S>;
  if (place == nullptr || step == 0) {
    const C value = place == nullptr ? otherwise : load_constant(place + offset);
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) values[lane] = value;
    return;
  }
  constexpr int kPack = Pack<S>::kWidth;
#pragma unroll
  for (int pack = 0; pack < kWidth / kPack; ++pack) {
    C found[kPack];
    take_apart<S>(__ldg(reinterpret_cast<const uint4*>(place + offset) + pack), found);
#pragma unroll
    for (int lane = 0; lane < kPack; ++lane) values[pack * kPack + lane] = found[lane];
  }
}

// Scale or bias of a group; a null place where there is none.
template <typename P>
struct Parameter {
  using C = Compute<P>;
  const void* place;
  bool narrow;

  __device__ __forceinline__ Parameter() : place(nullptr), narrow(false) {}
  __device__ __forceinline__ Parameter(const NormalizationParams& params, Operand operand, const int64 (&at)[kOperands])
      : place(params.operands[operand]), narrow(is_narrow<P>(params, operand)) {
    if (place == nullptr) return;
    place = narrow ? static_cast<const void*>(static_cast<const P*>(place) + at[operand]) : static_cast<const C*>(place) + at[operand];
  }

  template <int kWidth>
  __device__ __forceinline__ void load(C (&values)[kWidth], int32 offset, int64 step, C otherwise) const {
    if (narrow) {
      load_varying(values, static_cast<const P*>(place), offset, step, otherwise);
    } else {
      load_varying(values, static_cast<const C*>(place), offset, step, otherwise);
    }
  }
};

// Blend values into a whole pack of the output.
template <typename T>
__device__ __forceinline__ void store_whole(
    const NormalizationParams& params, const Compute<T> (&values)[Pack<T>::kWidth], T* place
) {
  using C = Compute<T>;
  constexpr int kWidth = Pack<T>::kWidth;
  const C alpha = static_cast<C>(params.blend.alpha), beta = static_cast<C>(params.blend.beta);
  C old[kWidth];
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) old[lane] = -C(0);  // to which zeros can be added without losing their sign
  if (params.blend.beta != 0.0) {
    take_apart<T>(load_raw(place), old);
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) old[lane] *= beta;
  }
  Pack<T> pack;
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) pack.lanes[lane] = narrow<T>(alpha * values[lane] + old[lane]);
  *reinterpret_cast<Pack<T>*>(place) = pack;
}

// The sum over a team, with the same bits in every thread. All threads of the block take part.
template <typename C, int kNumber>
__device__ __forceinline__ void sum_team(const Team& team, C (&values)[kNumber]) {
  __shared__ C shared[kNormalizationThreads / kWarpSize][kNumber];
  for (int distance = 1; distance < min(team.lanes, kWarpSize); distance *= 2) {
#pragma unroll
    for (int i = 0; i < kNumber; ++i) values[i] += __shfl_xor_sync(0xffffffffu, values[i], distance);
  }
  if (team.lanes <= kWarpSize) return;
  __syncthreads();  // readers of a previous sum are done
  if (threadIdx.x % kWarpSize == 0) {
#pragma unroll
    for (int i = 0; i < kNumber; ++i) shared[threadIdx.x / kWarpSize][i] = values[i];
  }
  __syncthreads();
  const int first = team.column * (team.lanes / kWarpSize);
#pragma unroll
  for (int i = 0; i < kNumber; ++i) {
    values[i] = shared[first][i];
    for (int other = 1; other < team.lanes / kWarpSize; ++other) values[i] += shared[first + other][i];
  }
}

}  // namespace dnncore
