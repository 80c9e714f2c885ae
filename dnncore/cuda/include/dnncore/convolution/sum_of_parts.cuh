// Parts of sums that blocks have left in the workspace, as their threads have them, added up in the same order every time by a second
// kernel. Four sums are a place. Where parts are many, 2^log2_ways threads of a block share those of a place: each adds every
// so-manyeth, with eight loads under way, and one of them what these found.
//
//     parts      [part][place]      a part is as far from the next as the caller says
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

inline constexpr int kSumThreads = 128;

class SumOfParts {
public:
  __device__ __forceinline__ explicit SumOfParts(int32 log2_ways)
      : ways_(1 << log2_ways),
        places_(kSumThreads >> log2_ways),
        way_(static_cast<int32>(threadIdx.x) / places_),
        place_(static_cast<int32>(threadIdx.x) % places_) {}

  // Blocks along x share out the places.
  __device__ __forceinline__ int32 place() const { return static_cast<int32>(blockIdx.x) * places_ + place_; }

  // By all threads of a block; whether this one has the total of its place. `parts` is the first one's place.
  __device__ __forceinline__ bool add(const float4* parts, int32 count, int64 next, float4& sum) const {
    constexpr int kAtATime = 8;  // loads that are under way
    __shared__ float4 sums[kSumThreads];
    sum = float4{};
    parts += way_ * next;
    for (int32 part = way_; part < count; part += ways_ * kAtATime) {
      float4 found[kAtATime];
#pragma unroll
      for (int i = 0; i < kAtATime; ++i) {
        found[i] = part + i * ways_ < count ? __ldcg(parts) : float4{};
        parts += ways_ * next;
      }
#pragma unroll
      for (int i = 0; i < kAtATime; ++i) add(sum, found[i]);
    }
    if (ways_ == 1) return true;
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (way_ > 0) return false;
    for (int i = 1; i < ways_; ++i) add(sum, sums[i * places_ + place_]);
    return true;
  }

private:
  static __device__ __forceinline__ void add(float4& sum, const float4& other) {
    sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
  }

  int32 ways_;
  int32 places_;
  int32 way_;
  int32 place_;
};

}  // namespace dnncore
