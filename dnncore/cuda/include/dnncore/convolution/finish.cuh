// The epilogue of a fused convolution for kernels whose threads hold many sums in registers just before they write them.
// Its code would be large if every register had its own. So only activations that are a comparison or two are applied to
// all registers by as much code; of the others there is code for two values: these are computed, then all values move
// on by two registers, as often as it takes to bring each back to its own. No register is indexed at run time.
//
//    values    a b c d e f     f(a) and f(b), and move on      c d e f A B
//                                                              e f A B C D
//                                                              A B C D E F
#pragma once

#include "dnncore/gemm/epilogue.cuh"

namespace dnncore {

template <ActivationMode kMode, typename C, int kCount>
__device__ __forceinline__ void activate_each(const Activation& activation, C (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = activate<kMode>(activation, values[i]);
}

// f(x) for all values.
template <typename C, int kCount>
__device__ __forceinline__ void activate_all(const Activation& activation, C (&values)[kCount]) {
  static_assert(kCount % 2 == 0);
  switch (activation.mode) {
    case ActivationMode::kIdentity: return;
    case ActivationMode::kRelu: return activate_each<ActivationMode::kRelu>(activation, values);
    case ActivationMode::kClippedRelu: return activate_each<ActivationMode::kClippedRelu>(activation, values);
    default: break;
  }
#pragma unroll 1
  for (int turn = 0; turn < kCount / 2; ++turn) {
    C done[] = {values[0], values[1]};
    with_mode(activation, [&](auto chosen) { activate_each<chosen.kMode>(activation, done); });
#pragma unroll
    for (int i = 0; i < kCount - 2; ++i) values[i] = values[i + 2];
    values[kCount - 2] = done[0];
    values[kCount - 1] = done[1];
  }
}

// The epilogue of what a thread holds: sums of T's products, of kChannels neighbouring channels from `channel` on, again
// and again. residual(i) is what lies in z where the i-th sum goes; it is called for places that are not there, too.
template <typename T, int kChannels, int kCount, typename Residual>
__device__ __forceinline__ void finish(
    const Epilogue& epilogue, int64 channel, const Residual& residual, Compute<T> (&sums)[kCount]) {
  using C = Compute<T>;
  static_assert(kCount % kChannels == 0);
  C scales[kChannels], biases[kChannels];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    scales[i] = epilogue.template scale_of<T>(channel + i);
    biases[i] = epilogue.template bias_of<T>(channel + i);
  }
  const bool reads_z = epilogue.reads_z();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const C z = reads_z ? residual(i) : C(0);
    sums[i] = epilogue.affine(sums[i], scales[i % kChannels], biases[i % kChannels], z);
  }
  activate_all(epilogue.activation, sums);
}

}  // namespace dnncore
