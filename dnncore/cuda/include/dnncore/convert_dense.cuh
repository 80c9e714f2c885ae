// c = alpha * a + beta * c between two element types, for tensors that lie alike and without gaps: a thread takes as many
// neighbours as fill 16 bytes of the narrower type.
#pragma once

#include "dnncore/common/pack.cuh"

namespace dnncore {

// _PARAMS in convert_dense.py.
struct ConvertDenseParams {
  Blend blend;
  const void* a;
  void* c;
  int64 size;
};

template <typename From, typename To>
__device__ void convert_dense(const ConvertDenseParams& params) {
  constexpr int kFrom = Pack<From>::kWidth, kTo = Pack<To>::kWidth, kLanes = kFrom > kTo ? kFrom : kTo;
  const auto* a = static_cast<const From*>(params.a);
  auto* c = static_cast<To*>(params.c);
  for (int64 first = grid_index() * kLanes; first < params.size; first += grid_size() * kLanes) {
    float values[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; i += kFrom) {
      const Pack<From> pack = load_pack(a + first + i, 1, params.size - first - i);
#pragma unroll
      for (int lane = 0; lane < kFrom; ++lane) values[i + lane] = widen(pack.lanes[lane]);
    }
#pragma unroll
    for (int i = 0; i < kLanes; i += kTo) {
      const int64 lanes = params.size - first - i;
      Pack<To> pack{};
      if (params.blend.beta != 0.0) pack = load_pack(c + first + i, 1, lanes);
#pragma unroll
      for (int lane = 0; lane < kTo; ++lane) blend_into(params.blend, values[i + lane], &pack.lanes[lane]);
      store_pack(pack, c + first + i, 1, lanes);
    }
  }
}

}  // namespace dnncore
