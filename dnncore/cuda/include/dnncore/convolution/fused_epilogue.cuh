// The epilogue of a fused convolution on its own: y = activation(alpha1 * sum * scale[k] + bias[k] + alpha2 * z), from
// sums that some convolution left in the workspace. It is memory-bound. As in elementwise.cuh, the host collapses the
// dimensions, and a thread takes 16 bytes of a row and works out once where they are.
#pragma once

#include <type_traits>

#include "dnncore/common/pack.cuh"
#include "dnncore/common/tensor.cuh"
#include "dnncore/gemm/epilogue.cuh"

namespace dnncore::fused_epilogue {

// Operands that have an offset of their own for each element; that of kChannel is the number of the channel.
enum Operand { kSums, kChannel, kZ, kY, kOperands };

// Mirrored by _PARAMS in dnncore/cuda/convolution/composed.py. The views share one shape; strides count elements.
struct Params {
  Blend blend;
  Epilogue epilogue;
  const void* sums;
  void* y;
  int64 rows;
  Divisor row_packs;  // packs per row; the last may have fewer lanes
  TensorView views[kOperands];
};

// Load the lanes of a row that exist, at once where they make 16 bytes.
template <typename T, int kLanes>
__device__ __forceinline__ void load(const T* place, int64 step, int64 lanes, T (&values)[kLanes]) {
  if constexpr (kLanes == Pack<T>::kWidth) {
    const Pack<T> pack = load_pack(place, step, lanes);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) values[i] = pack.lanes[i];
  } else {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) values[i] = i < lanes ? place[i * step] : T{};
  }
}

template <typename T, int kLanes>
__device__ __forceinline__ void store(const T (&values)[kLanes], T* place, int64 step, int64 lanes) {
  if constexpr (kLanes == Pack<T>::kWidth) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) pack.lanes[i] = values[i];
    store_pack(pack, place, step, lanes);
  } else {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      if (i < lanes) place[i * step] = values[i];
    }
  }
}

// T is the type of the sums and Out that of z and y; T is no narrower than Out.
template <typename T, typename Out>
__device__ void fused_epilogue(const Params& params) {
  using C = Compute<T>;
  constexpr int kLanes = Pack<T>::kWidth;
  const Epilogue& epilogue = params.epilogue;
  const TensorView& shape = params.views[kY];
  const int last = shape.ndim - 1;
  int64 steps[kOperands];
#pragma unroll
  for (int i = 0; i < kOperands; ++i) steps[i] = params.views[i].strides[last];

  const int64 packs = params.rows * params.row_packs.value;
  for (int64 index = grid_index(); index < packs; index += grid_size()) {
    const QuotientRemainder split = divide(index, params.row_packs);
    const int64 first = split.remainder * kLanes, lanes = shape.shape[last].value - first;
    int64 offsets[kOperands];
#pragma unroll
    for (int i = 0; i < kOperands; ++i) offsets[i] = first * steps[i];
    int64 row = split.quotient;
#pragma unroll 1
    for (int axis = last - 1; axis >= 0; --axis) {
      const QuotientRemainder place = divide(row, shape.shape[axis]);
      row = place.quotient;
#pragma unroll
      for (int i = 0; i < kOperands; ++i) offsets[i] += place.remainder * params.views[i].strides[axis];
    }

    T sums[kLanes];
    Out z[kLanes] = {}, y[kLanes] = {};
    load(static_cast<const T*>(params.sums) + offsets[kSums], steps[kSums], lanes, sums);
    if (epilogue.reads_z()) load(static_cast<const Out*>(epilogue.z) + offsets[kZ], steps[kZ], lanes, z);
    Out* const output = static_cast<Out*>(params.y) + offsets[kY];
    if (params.blend.beta != 0.0) load<Out>(output, steps[kY], lanes, y);
    C values[kLanes], scale, bias;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      if (i == 0 || (steps[kChannel] != 0 && i < lanes)) {
        const int64 k = offsets[kChannel] + i * steps[kChannel];
        scale = epilogue.template scale_of<T>(k);
        bias = epilogue.template bias_of<T>(k);
      }
      values[i] = epilogue.affine(widen(sums[i]), scale, bias, static_cast<C>(widen(z[i])));
    }
    with_mode(epilogue.activation, [&](auto chosen) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) values[i] = activate<chosen.kMode>(epilogue.activation, values[i]);
    });
#pragma unroll
    for (int i = 0; i < kLanes; ++i) blend_into(params.blend, values[i], &y[i]);
    store(y, output, steps[kY], lanes);
  }
}

}  // namespace dnncore::fused_epilogue
