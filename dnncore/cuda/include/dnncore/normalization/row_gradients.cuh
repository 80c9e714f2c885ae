// The gradients of a layer or RMS normalisation whose rows lie one behind the other: dx, dscale and dbias in one pass over x and dy,
// where the general kernels (backward.cuh) read both twice, once along the rows and once along the columns. With n = (x - mean)
// inv_std and g = scale dy,
//
//    dx = inv_std (g - mean(g) - n mean(g n)),    dscale = sum of dy n,    dbias = sum of dy    over the rows
//
// A team of threads takes a row and goes on to another one: so each thread has the same columns all the time, and adds up what they give to
// dscale and dbias beside. Packs come to slots of the thread's own in shared memory, kRowStages rows ahead, so that no thread waits for
// another one's: while a team waits for its sums, its next rows are under way. The teams of a block put their sums together in shared
// memory, one after the other, and leave one part per block in the workspace; a second launch adds up the parts.
//
//    row 0   [pack][pack][pack] ...   team 0           dx
//    row 1   [pack][pack][pack] ...   team 1           dx          sums of the columns -> parts [blocks][2][length]
//    row t   [pack][pack][pack] ...   team 0 again     dx          parts -> dscale, dbias
//
// The order of all sums depends on the launch alone. For an RMS normalisation there is no mean, neither to subtract nor in dx.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/common/pack.cuh"
#include "dnncore/common/reduce.cuh"
#include "dnncore/ptx/async_copy.cuh"

namespace dnncore {

constexpr int kRowThreads = 256;     // most of a block; _THREADS in row_gradients.py
constexpr int kRowStages = 2;        // rows of a team that are under way; _STAGES there
constexpr int kColumnThreads = 256;  // _COLUMN_THREADS there

// Mirrored by _PARAMS in dnncore/cuda/normalization/row_gradients.py.
struct RowGradientParams {
  Blend blend;
  const void* x;
  const void* dy;
  const void* scale;    // null for 1
  const void* mean;     // null for an RMS normalisation
  const void* inv_std;  // of each row, as mean
  void* dx;
  void* parts;  // [blocks, 2, length]: of dscale, then of dbias
  int64 rows;
  double share;  // 1 / length
  int32 packs;   // of a row
  int32 lanes;   // threads of a team, a power of two from 32 on
};

// Packs of a row that a thread has at most: 128 bytes of sums, twice; _PACKS in row_gradients.py.
template <typename T>
constexpr int kRowPacks = sizeof(T) == 2 ? 2 : 4;

// Scale is stored as type S.
template <typename T, typename S>
__device__ void row_gradients(const RowGradientParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Pack<T>::kWidth, kPacks = kRowPacks<T>, kWarps = kRowThreads / kWarpSize;
  extern __shared__ __align__(16) unsigned char shared[];  // slots: [kRowStages][kPacks][x, dy][threads]; then sums of the block: [2][length]
  __shared__ C crossing[2][kWarps][2];                     // of the warps of a team, for two rows in turn
  const int lane = threadIdx.x % params.lanes, team = threadIdx.x / params.lanes, teams = blockDim.x / params.lanes;
  const int warp = threadIdx.x / kWarpSize, first_warp = team * (params.lanes / kWarpSize);
  const C share = static_cast<C>(params.share);
  const bool is_centred = params.mean != nullptr;
  const auto* scale = static_cast<const Vector<S, kWidth>*>(params.scale);
  C plain[kPacks][kWidth] = {}, normalized[kPacks][kWidth] = {};
  const int64 step = static_cast<int64>(gridDim.x) * teams;
  const auto at = [&](int k) { return lane + k * params.lanes; };
  const auto slot = [&](int stage, int k, int which) {
    return reinterpret_cast<Pack<T>*>(shared) + ((stage * kPacks + k) * 2 + which) * blockDim.x + threadIdx.x;
  };
  const auto begin = [&](int stage, int64 row) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const bool inside = row < params.rows && at(k) < params.packs;
      const int64 place = inside ? row * params.packs + at(k) : 0;
      copy_vector_async(slot(stage, k, 0), static_cast<const Pack<T>*>(params.x) + place, inside);
      copy_vector_async(slot(stage, k, 1), static_cast<const Pack<T>*>(params.dy) + place, inside);
    }
    commit_copies();
  };
  int turn = 0, stage = 0;
  const int64 start_of_block = static_cast<int64>(blockIdx.x) * teams;
#pragma unroll
  for (int ahead = 0; ahead < kRowStages; ++ahead) begin(ahead, start_of_block + team + ahead * step);
  for (int64 first = start_of_block; first < params.rows; first += step) {
    const int64 row = first + team;
    const bool exists = row < params.rows;
    const auto has = [&](int k) { return exists && at(k) < params.packs; };
    const int64 start = row * params.packs;
    Pack<T> x[kPacks], dy[kPacks];
    wait_for_copies<kRowStages - 1>();
#pragma unroll
    for (int k = 0; k < kPacks; ++k) x[k] = *slot(stage, k, 0), dy[k] = *slot(stage, k, 1);
    __syncwarp();  // the compiler moves no read of the slots past it
    begin(stage, row + kRowStages * step);
    stage = stage + 1 == kRowStages ? 0 : stage + 1;
    const C mean = exists && is_centred ? static_cast<const C*>(params.mean)[row] : C(0);
    const C inv_std = exists ? static_cast<const C*>(params.inv_std)[row] : C(0);
    const auto weights_of = [&](int k, C (&weights)[kWidth]) {
      Vector<S, kWidth> found;
      if (scale != nullptr) found = scale[at(k)];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) weights[i] = scale != nullptr ? static_cast<C>(widen(found.at[i])) : C(1);
    };
    C sums[2] = {};
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!has(k)) continue;
      C weights[kWidth];
      weights_of(k, weights);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const C value = widen(dy[k].lanes[i]), n = (widen(x[k].lanes[i]) - mean) * inv_std, g = weights[i] * value;
        plain[k][i] += value;
        normalized[k][i] += value * n;
        sums[0] += g;
        sums[1] += g * n;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i] = reduce_warp<Sum>(sums[i]);
    if (params.lanes > kWarpSize) {
      // A warp that is here again has met the others since they read what it is going to overwrite.
      if (threadIdx.x % kWarpSize == 0) crossing[turn][warp][0] = sums[0], crossing[turn][warp][1] = sums[1];
      __syncthreads();
      sums[0] = sums[1] = C(0);
      for (int other = first_warp; other < first_warp + params.lanes / kWarpSize; ++other) {
        sums[0] += crossing[turn][other][0];
        sums[1] += crossing[turn][other][1];
      }
      turn ^= 1;
    }
    const C level = is_centred ? sums[0] * share : C(0), tilt = sums[1] * share;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!has(k)) continue;
      C weights[kWidth];
      weights_of(k, weights);
      auto* place = static_cast<Pack<T>*>(params.dx) + start + at(k);
      Pack<T> result{};
      if (params.blend.beta != 0.0) result = *place;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const C n = (widen(x[k].lanes[i]) - mean) * inv_std, g = weights[i] * widen(dy[k].lanes[i]);
        blend_into(params.blend, inv_std * (g - level - n * tilt), &result.lanes[i]);
      }
      *place = result;
    }
  }
  wait_for_copies<0>();
  if (teams > 1) __syncthreads();  // the sums take the place of all threads' slots
  auto* block = reinterpret_cast<Pack<C>*>(shared);
  constexpr int kSpread = kWidth / Pack<C>::kWidth;  // packs of sums for one of elements
  const int length = params.packs * kSpread;
  auto* part = static_cast<Pack<C>*>(params.parts) + static_cast<int64>(blockIdx.x) * 2 * length;
  for (int next = 0; next < teams; ++next) {
    if (next > 0) __syncthreads();
    if (team != next) continue;
    auto* const target = next + 1 == teams ? part : block;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int pack = lane + k * params.lanes;
      if (pack >= params.packs) continue;
#pragma unroll
      for (int piece = 0; piece < kSpread; ++piece) {
        const int place = pack * kSpread + piece;
        Pack<C> of_scale{}, of_bias{};
        if (next > 0) of_scale = block[place], of_bias = block[length + place];
#pragma unroll
        for (int i = 0; i < Pack<C>::kWidth; ++i) {
          of_scale.lanes[i] += normalized[k][piece * Pack<C>::kWidth + i];
          of_bias.lanes[i] += plain[k][piece * Pack<C>::kWidth + i];
        }
        target[place] = of_scale;
        target[length + place] = of_bias;
      }
    }
  }
}

// Mirrored by _COLUMN_PARAMS in dnncore/cuda/normalization/row_gradients.py.
struct ColumnGradientParams {
  const void* parts;
  const void* old_gradients[2];  // of scale and bias; null where there is none, as the next
  void* gradients[2];
  double alpha;
  double beta;
  int64 blocks;  // parts
  int32 length;
  int32 is_narrow;  // bits: old dscale, old dbias, dscale, dbias are stored as T, not in the compute type
};

// A warp's lanes have a column each, the warps of a block every kWarps-th part of these; the first two warps write.
template <typename T>
__device__ void column_gradients(const ColumnGradientParams& params) {
  using C = Compute<T>;
  constexpr int kWarps = kColumnThreads / kWarpSize;
  __shared__ C found[2][kWarps][kWarpSize];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int column = blockIdx.x * kWarpSize + lane;
  const auto* parts = static_cast<const C*>(params.parts);
  C sums[2] = {};
  if (column < params.length) {
#pragma unroll 4
    for (int64 block = warp; block < params.blocks; block += kWarps) {
      sums[0] += parts[block * 2 * params.length + column];
      sums[1] += parts[(block * 2 + 1) * params.length + column];
    }
  }
  found[0][warp][lane] = sums[0];
  found[1][warp][lane] = sums[1];
  __syncthreads();
  if (warp >= 2 || column >= params.length || params.gradients[warp] == nullptr) return;
  C total = C(0);
  for (int other = 0; other < kWarps; ++other) total += found[warp][other][lane];
  total *= static_cast<C>(params.alpha);
  const auto is_narrow = [&](int bit) { return sizeof(T) < sizeof(C) && (params.is_narrow >> bit & 1) != 0; };
  const void* old = params.old_gradients[warp];
  if (old != nullptr) {
    const C before = is_narrow(warp) ? widen(static_cast<const T*>(old)[column]) : static_cast<const C*>(old)[column];
    total += static_cast<C>(params.beta) * before;
  }
  if (is_narrow(2 + warp)) {
    static_cast<T*>(params.gradients[warp])[column] = narrow<T>(total);
  } else {
    static_cast<C*>(params.gradients[warp])[column] = total;
  }
}

}  // namespace dnncore
