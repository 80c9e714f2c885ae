// Backward-filter convolution by the matrix units of sm_90: 16-bit channels-last images, sums in fp32. What comes to them, and who
// computes what, is drawn in filter_feed.cuh; the units transpose both operands.
//
// With few channels it is gathering x for every tap that takes the time. For filters of 3 x 3 without stride there are patches
// instead (`Patches`): a stage is 8 x 14 pixels of dy and the 10 x 16 pixels of x that their taps meet, loaded once, and each
// tap is the same memory from another row on:
//
//     x    . . . . . . . . . .      a pixel is a row of 128 bytes; tap (r, s) begins 10 r + s rows further on, eight pixels are
//          . o o o o o o o o .      followed by the next eight 10 rows on, and the columns of tap s + 1 overlap those of tap s,
//          . o o o o o o o o .      a row further on. A consumer has the three taps of one r.
#pragma once

#include "dnncore/convolution/filter_feed.cuh"
#include "dnncore/convolution/filter_parts.cuh"
#include "dnncore/ptx/matrix_store.cuh"

namespace dnncore::wgmma_filter {

using filter::Gradient;
using filter::Params;
using filter::Patches;
using filter::Piece;
using filter::SumParams;
using wgmma::kConsumerFilters;
using wgmma::kSlab;
using wgmma::Position;

using Columns = filter::Columns<kSlab>;

// Where a thread's totals of 64 columns of two filters, k and k + 8, belong in dw, which is in 16 bits, or in fp32 for the kernel that
// adds up parts.
template <typename T>
class Target {
public:
  __device__ __forceinline__ Target(const Blend& blend, const Gradient& gradient, const Columns& columns, int32 k)
      : alpha_(static_cast<float>(blend.alpha)),
        beta_(static_cast<float>(blend.beta)),
        in_vectors_(gradient.in_vectors != 0 && blend.beta == 0.0),
        filters_(gradient.filters - k),
        channels_(gradient.channels - columns.channel),
        next_filter_(8 * gradient.strides[0]),
        next_channel_(gradient.strides[1]) {
    dw_ = static_cast<T*>(gradient.dw) + (k * gradient.strides[0] + columns.channel * next_channel_ +
                                          columns.r * gradient.strides[2] + columns.s * gradient.strides[3]);
  }

  __device__ __forceinline__ bool in_vectors() const { return in_vectors_; }

  // Two neighbouring columns of both filters.
  __device__ __forceinline__ void store(int column, const float4& sums) const {
    if (in_vectors_) {
      if (column >= channels_) return;
      if constexpr (sizeof(T) == sizeof(float)) {
        if (filters_ > 0) *reinterpret_cast<float2*>(dw_ + column) = {alpha_ * sums.x, alpha_ * sums.y};
        if (filters_ > 8) *reinterpret_cast<float2*>(dw_ + next_filter_ + column) = {alpha_ * sums.z, alpha_ * sums.w};
      } else {
        if (filters_ > 0) *reinterpret_cast<uint32*>(dw_ + column) = pair(sums.x, sums.y);
        if (filters_ > 8) *reinterpret_cast<uint32*>(dw_ + next_filter_ + column) = pair(sums.z, sums.w);
      }
      return;
    }
    const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i % 2 >= channels_ || filters_ <= i / 2 * 8) continue;
      T* const dw = dw_ + (i / 2 * next_filter_ + (column + i % 2) * next_channel_);
      const float old = beta_ == 0.0F ? 0.0F : beta_ * widen(*dw);
      *dw = narrow<T>(alpha_ * values[i] + old);
    }
  }

  // Four times as many, of which neighbouring lanes have a quarter each, every eight columns: 16 bytes of a lane at a time.
  __device__ __forceinline__ void store_vectors(int column, const float4 (&sums)[4]) const {
    const int quarter = static_cast<int>(threadIdx.x) % 4;
    uint32 upper[4], lower[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) upper[i] = pair(sums[i].x, sums[i].y), lower[i] = pair(sums[i].z, sums[i].w);
    exchange(upper, quarter), exchange(lower, quarter);
    const int here = column + quarter * 8;
    if (here >= channels_) return;
    if (filters_ > 0) *reinterpret_cast<uint4*>(dw_ + here) = {upper[0], upper[1], upper[2], upper[3]};
    if (filters_ > 8) *reinterpret_cast<uint4*>(dw_ + next_filter_ + here) = {lower[0], lower[1], lower[2], lower[3]};
  }

private:
  __device__ __forceinline__ uint32 pair(float first, float second) const {
    return narrow_pair<T>(alpha_ * first, alpha_ * second);
  }

  // Four lanes with four values each: value i of lane q becomes value q of lane i.
  static __device__ __forceinline__ void exchange(uint32 (&values)[4], int lane) {
#pragma unroll
    for (int far = 1; far <= 2; far *= 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32& first = values[far == 1 ? 2 * i : i];
        uint32& second = values[far == 1 ? 2 * i + 1 : i + 2];
        const bool keeps_second = (lane & far) != 0;
        const uint32 other = __shfl_xor_sync(~0U, keeps_second ? first : second, far);
        (keeps_second ? first : second) = other;
      }
    }
  }

  float alpha_;
  float beta_;
  bool in_vectors_;
  int32 filters_;   // from k on
  int32 channels_;  // from the first of these columns on
  int64 next_filter_;
  int64 next_channel_;
  T* dw_;
};

// Tiles of kFilters x kColumns, shared out to the consumers along the filters if these are enough for all.
template <typename T, int kFilters, int kColumns, int kStages, typename Stage = filter::Pixels<64, kColumns / kSlab>>
struct Kernel {
  using Feed = filter::Feed<T, kFilters, kColumns, kStages, Stage>;
  using Shared = typename Feed::Shared;
  static constexpr int kConsumers = Stage::kConsumers;
  static constexpr bool kInPatches = Feed::kInPatches;
  static constexpr bool kSharesFilters = kFilters == kConsumers * kConsumerFilters;
  static constexpr int kConsumerColumns = kSharesFilters ? kColumns : kColumns / kConsumers;
  static constexpr int kFragments = kConsumerColumns / 8;  // of four sums, of a thread
  static_assert((kSharesFilters || kFilters == kConsumerFilters) && kConsumerColumns % kSlab == 0);

  static __device__ void run(const Params& params) {
    Feed::run(params, [&](Shared& shared, int consumer) { consume(params, shared, consumer); });
  }

private:
  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, int consumer) {
    Position<kStages> at;
    filter::for_each_piece(params.gradient, [&](const Piece& piece) {
      float sums[kConsumerColumns / 2];
      multiply(sums, piece.steps, shared, consumer, at);
      if (piece.steps == params.gradient.steps) {
        store(params, piece.tile, sums, consumer);
      } else {
        leave(params.gradient, piece, sums, consumer);
      }
    });
  }

  static __device__ __forceinline__ void multiply(
      float (&sums)[kConsumerColumns / 2], int steps, Shared& shared, int consumer, Position<kStages>& at) {
    const int first_dy = kSharesFilters ? consumer : 0;
    const int first_block = kSharesFilters || kInPatches ? 0 : consumer * (kConsumerColumns / kSlab);
    const int first_row = kInPatches ? consumer * Patches::kPatchWidth : 0;
    shared.ring.multiply_each(at, steps, [&](int stage, bool is_first) {
      const uint64 dy =
          matrix_descriptor(shared_address(&shared.dy[stage][first_dy]), 16, 8 * kMatrixRowBytes);
      const uint64 x =
          matrix_descriptor(shared_address(&shared.x[stage][first_block][first_row]), Stage::kNext, Stage::kPitch);
#pragma unroll
      for (int i = 0; i < Stage::kSteps; ++i) {
        multiply_matrices<T, Major::kMN, Major::kMN>(
            sums, dy + i * kMatrixStep<Major::kMN>, x + i * (2 * Stage::kPitch / 16), !is_first || i > 0);
      }
    });
  }

  static __device__ __forceinline__ float4 fragment(const float (&sums)[kConsumerColumns / 2], int i) {
    return {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  }

  static __device__ __forceinline__ void leave(
      const Gradient& gradient, const Piece& piece, const float (&sums)[kConsumerColumns / 2], int consumer) {
    constexpr int kOfTile = kConsumers * kFragments * kWarpgroup;
    float4* const to = gradient.parts + static_cast<int64>(piece.slot()) * kOfTile +
                       (consumer * kFragments * kWarpgroup + static_cast<int>(threadIdx.x) % kWarpgroup);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) to[i * kWarpgroup] = fragment(sums, i);
  }

  static __device__ __forceinline__ void store(
      const Params& params, int32 tile, const float (&sums)[kConsumerColumns / 2], int consumer) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    const int row = (kSharesFilters ? consumer * kConsumerFilters : 0) + thread / 32 * 16 + lane / 4;
    const int first_block = kSharesFilters ? 0 : consumer * (kConsumerColumns / kSlab);
    const int32 k = tile % params.gradient.filter_tiles * kFilters + row;
#pragma unroll
    for (int block = 0; block < kConsumerColumns / kSlab; ++block) {
      const Columns columns(params.gradient, tile, first_block + block);
      const Target<T> target(params.blend, params.gradient, columns, k);
#pragma unroll
      for (int i = 0; i < kSlab / 8; i += 4) {
        const int first = block * (kSlab / 8) + i;
        const float4 four[4] = {
            fragment(sums, first), fragment(sums, first + 1), fragment(sums, first + 2), fragment(sums, first + 3)};
        if (!kInPatches && target.in_vectors()) {  // those of patches have no registers to spare, and are hardly ever whole
          target.store_vectors(8 * i, four);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) target.store(8 * (i + j) + lane % 4 * 2, four[j]);
        }
      }
    }
  }
};

// Add up what these kernels have left.
template <typename T>
__device__ void add_parts(const SumParams& params) {
  filter::add_parts(params, [&](int32 tile, int32 place, const float4& sum) {
    const int32 of_warpgroup = place % kWarpgroup, lane = of_warpgroup % 32;
    const int32 fragment = place / kWarpgroup % params.fragments, consumer = place / kWarpgroup / params.fragments;
    const bool shares_filters = params.rows > kConsumerFilters;
    const int32 row = (shares_filters ? consumer * kConsumerFilters : 0) + of_warpgroup / 32 * 16 + lane / 4;
    const int32 column = ((shares_filters ? 0 : consumer * params.fragments) + fragment) * 8 + lane % 4 * 2;
    const Columns columns(params.gradient, tile, column / kSlab);
    const int32 k = tile % params.gradient.filter_tiles * params.rows + row;
    Target<T>(params.blend, params.gradient, columns, k).store(column % kSlab, sum);
  });
}

}  // namespace dnncore::wgmma_filter
