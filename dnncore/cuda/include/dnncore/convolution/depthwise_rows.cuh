// Depthwise convolution with small square filters that are not dilated, on pieces of 16 bytes of channels, which are
// innermost: forward, and backward-data of stride 1, which is forward with the filter turned round. A block walks down
// the rows of a strip of one image, or of several narrow ones. Rows of the source come to a ring in shared memory by
// copies that run while the block computes: what is on its way occupies no registers, and each element comes from the
// L2 cache once, but for the halo of a strip. A thread computes kHigh rows of kColumns places of four channels at a time.
//
//            place 0          kPlaces         2 kPlaces        halo
//             +---------------+---------------+---- ... ----+--------+
//    row 0    | v v v v v v v |               |             |        |   `lanes` vectors of channels at each place
//             +---------------+---------------+---- ... ----+--------+
//    row 1    |    group 0    |    group 1    |             |        |   a group's first place lies `pitch` vectors
//             +---------------+---------------+---- ... ----+--------+   behind the one before: threads that read
//     ...                                                                together meet in no bank
//
//    ring     | kRows that a step reads ............. | kStep that come for the next |
//
// Padding consists of zeros that are multiplied, so a filter that is not finite shows at the border, backward too.
#pragma once

#include "dnncore/convolution/depthwise.cuh"
#include "dnncore/ptx/async_copy.cuh"
#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/extremum.cuh"

namespace dnncore::depthwise {

// Mirrored by _PARAMS in dnncore/cuda/convolution/depthwise_rows.py. Strides are in elements, rows and columns those of
// the tensors.
struct RowParams {
  Blend blend;
  Epilogue epilogue;  // of a fused convolution
  const void* source;
  const void* w;
  void* output;
  int64 source_image;
  int64 source_row;
  int64 output_image;
  int64 output_row;
  int64 w_filter;
  int64 w_offset;     // elements from w's address to the tap that the first row and column meet
  int32 w_row;
  int32 w_column;
  int32 source_rows;
  int32 source_columns;
  int32 output_rows;
  int32 output_columns;
  int32 source_column;
  int32 output_column;
  int32 padding_rows;
  int32 padding_columns;
  int32 images;
  int32 lanes;        // vectors of channels of a block, in whole pieces
  int32 groups;       // of columns, of a strip
  int32 pitch;        // vectors from a group's first place to the next one's in shared memory
  int32 row_vectors;  // of all images of a block, halos included
  int32 chunks;       // of lanes
  int32 strips;
  int32 crews;        // of images that a block takes together
  int32 crew;         // how many those are
  int32 walk;         // steps that a block takes
  int32 reads_filters_early;  // whether w is there before the kernel before has ended
};

constexpr int kVector = 4;
constexpr int kColumns = 4;

template <typename T, int kFilter, int kStride, int kHigh>
struct RowTile {
  using C = Compute<T>;
  static constexpr int kPlaces = kColumns * kStride, kShare = 16 / (kVector * sizeof(T));  // lanes of a piece
  static constexpr int kWide = kStride * (kColumns - 1) + kFilter, kHalo = kFilter - kStride;
  static constexpr int kRows = kStride * (kHigh - 1) + kFilter, kStep = kStride * kHigh, kRing = kRows + kStep;

  using Sums = C[kHigh][kColumns][kVector];

  // The ring's slot that lies so many behind another.
  __device__ __forceinline__ static int32 slot_behind(int32 slot, int32 n) {
    return slot + n < kRing ? slot + n : slot + n - kRing;
  }

  // The filters of a block's channels, [tap][channel].
  __device__ __forceinline__ static void fetch_filters(const RowParams& params, int32 first_channel, C* weights) {
    const int32 width = params.lanes * kVector;
    for (int32 i = threadIdx.x; i < width; i += blockDim.x) {
      const T* const w = static_cast<const T*>(params.w) + params.w_offset + (first_channel + i) * params.w_filter;
#pragma unroll
      for (int t = 0; t < kFilter; ++t) {
#pragma unroll
        for (int u = 0; u < kFilter; ++u) {
          weights[(t * kFilter + u) * width + i] = widen(w[t * params.w_row + u * params.w_column]);
        }
      }
    }
  }

  // What one row of those that a step reads adds to its rows of outputs; `place` is the thread's first one in it.
  __device__ __forceinline__ static void add_row(
      int row, const Loaded<T, kVector>* place, const C* weights, const RowParams& params, Sums& sums) {
    C values[kWide][kVector];
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      place[n / kPlaces * params.pitch + n % kPlaces * params.lanes].widen_into(values[n]);
    }
#pragma unroll
    for (int out = 0; out < kHigh; ++out) {
      const int tap_row = row - out * kStride;
      if (tap_row < 0 || tap_row >= kFilter) continue;
#pragma unroll
      for (int u = 0; u < kFilter; ++u) {
        const auto weight =
            *reinterpret_cast<const Vector<C, kVector>*>(weights + (tap_row * kFilter + u) * params.lanes * kVector);
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) sums[out][n][i] += weight.at[i] * values[n * kStride + u][i];
        }
      }
    }
  }

  __device__ __forceinline__ static void blend(const Blend& blend, int32 rows, int32 columns, const RowParams& params,
                                               const T* target, Sums& sums) {
    const C alpha = static_cast<C>(blend.alpha), beta = static_cast<C>(blend.beta);
#pragma unroll
    for (int out = 0; out < kHigh; ++out) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        Loaded<T, kVector> old;
        const bool reads = blend.beta != 0.0 && out < rows && n < columns;
        old.load_if(reads, target + out * params.output_row + n * static_cast<int64>(params.output_column));
        C before[kVector];
        old.widen_into(before);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sums[out][n][i] = alpha * sums[out][n][i] + (reads ? beta * before[i] : C(0));
        }
      }
    }
  }
};

// The epilogue of a fused convolution for a thread's four channels: what they have in common is fetched once.
template <typename T>
struct ChannelEpilogue {
  using C = Compute<T>;

  C scales[kVector];
  C biases[kVector];
  C residual;  // factor of z
  C ceiling;   // of a clipped rectifier

  __device__ __forceinline__ ChannelEpilogue(const Epilogue& epilogue, int32 channel)
      : residual(static_cast<C>(epilogue.alpha2)), ceiling(static_cast<C>(epilogue.activation.coefficient)) {
    const C alpha1 = static_cast<C>(epilogue.alpha1);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      scales[i] = alpha1 * epilogue.template scale_of<T>(channel + i);
      biases[i] = epilogue.template bias_of<T>(channel + i);
    }
  }

  // z lies as the output does, whose place of the first sum is `target`.
  template <int kHigh>
  __device__ __forceinline__ void finish(const RowParams& params, int32 rows, int32 columns, const T* target,
                                         C (&sums)[kHigh][kColumns][kVector]) const {
    const Epilogue& epilogue = params.epilogue;
#pragma unroll
    for (int out = 0; out < kHigh; ++out) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[out][n][i] = sums[out][n][i] * scales[i] + biases[i];
      }
    }
    if (epilogue.reads_z()) {
      const T* z = static_cast<const T*>(epilogue.z) + (target - static_cast<const T*>(params.output));
#pragma unroll
      for (int out = 0; out < kHigh; ++out, z += params.output_row) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          if (out >= rows || n >= columns) continue;
          const T* const from = z + n * static_cast<int64>(params.output_column);
#pragma unroll
          for (int i = 0; i < kVector; ++i) sums[out][n][i] += residual * widen(from[i]);
        }
      }
    }
    auto& all = reinterpret_cast<C(&)[kHigh * kColumns * kVector]>(sums);
    const ActivationMode mode = epilogue.activation.mode;
    if constexpr (std::is_same_v<C, float>) {
      if (mode == ActivationMode::kRelu || mode == ActivationMode::kClippedRelu) {
#pragma unroll
        for (C& value : all) value = larger(value, 0.0f);
        if (mode == ActivationMode::kRelu) return;
#pragma unroll
        for (C& value : all) value = smaller(value, ceiling);
        return;
      }
    }
    activate_all(epilogue.activation, all);
  }
};

// Begin to copy 16 bytes; zeros where there are none.
template <typename Place>
__device__ __forceinline__ void copy_piece(Place* to, const void* from, bool there) {
  copy_vector_async(reinterpret_cast<uint4*>(to), from, there);
}

template <typename T, int kFilter, int kStride, int kHigh>
__device__ void rows_of_channels(const RowParams& params) {
  using Tile = RowTile<T, kFilter, kStride, kHigh>;
  using C = Compute<T>;
  using Place = Loaded<T, kVector>;
  constexpr int kPlaces = Tile::kPlaces, kShare = Tile::kShare;
  extern __shared__ __align__(16) unsigned char shared[];
  Place* const ring = reinterpret_cast<Place*>(shared);
  C* const weights = reinterpret_cast<C*>(ring + Tile::kRing * params.row_vectors);

  int32 block = static_cast<int32>(blockIdx.x);
  const auto next_of = [&](int32 count) {
    const int32 quotient = block / count, remainder = block - quotient * count;
    block = quotient;
    return remainder;
  };
  const int32 chunk = next_of(params.chunks), strip = next_of(params.strips), crew = next_of(params.crews);
  const int32 first_channel = chunk * params.lanes * kVector;

  const int32 place = static_cast<int32>(threadIdx.x) / params.lanes, lane = threadIdx.x - place * params.lanes;
  const int32 member = place / params.groups, group = place - member * params.groups;
  const int32 image = crew * params.crew + member, channel = first_channel + lane * kVector;
  const int32 first_column = (strip * params.groups + group) * kColumns;
  const bool exists = image < params.images;

  let_next_start();
  if (!params.reads_filters_early) wait_for_previous();
  Tile::fetch_filters(params, first_channel, weights);
  wait_for_previous();

  // The threads of a group bring its places, those of one piece every kShare-th of them each, and the first groups the halo.
  const int32 begin = block * params.walk * kHigh, end = min(begin + params.walk * kHigh, params.output_rows);
  int32 row = begin * kStride - params.padding_rows, filled = 0;
  const int32 piece = lane / kShare * kShare, share = lane % kShare;
  const int32 column = first_column * kStride - params.padding_columns + share;
  const int32 halo_column = (strip + 1) * params.groups * kPlaces - params.padding_columns;
  const int32 step = params.source_column * static_cast<int32>(sizeof(T));
  const int32 output_step = params.output_column * static_cast<int32>(sizeof(T));
  const T* next = static_cast<const T*>(params.source) + image * params.source_image + first_channel +
                  piece * kVector + row * params.source_row;
  Place* const strip_places = ring + member * (params.row_vectors / params.crew);
  Place* const own = strip_places + group * params.pitch;
  Place* const halo = strip_places + params.groups * params.pitch;
  const auto bring = [&](int rows) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const bool inside = exists && static_cast<uint32>(row) < static_cast<uint32>(params.source_rows);
      const T* const from = nth_place(next, column, step);
      Place* const first = own + filled * params.row_vectors + share * params.lanes + piece;
#pragma unroll
      for (int n = 0; n < kPlaces; n += kShare) {
        const bool there = inside && static_cast<uint32>(column + n) < static_cast<uint32>(params.source_columns);
        copy_piece(first + n * params.lanes, nth_place(from, n, step), there);
      }
      for (int32 n = group * kShare + share; n < Tile::kHalo; n += params.groups * kShare) {
        const bool there = inside && static_cast<uint32>(halo_column + n) < static_cast<uint32>(params.source_columns);
        Place* const to = halo + filled * params.row_vectors + n / kPlaces * params.pitch + n % kPlaces * params.lanes;
        copy_piece(to + piece, nth_place(next, halo_column + n, step), there);
      }
      ++row;
      next += params.source_row;
      filled = Tile::slot_behind(filled, 1);
    }
    commit_copies();
  };
  bring(Tile::kRows);
  const ChannelEpilogue<T> epilogue(params.epilogue, exists ? channel : 0);

  T* target = static_cast<T*>(params.output) + image * params.output_image + channel + begin * params.output_row +
              static_cast<int64>(first_column) * params.output_column;
  const int32 columns = exists ? params.output_columns - first_column : 0;
  const bool blends = params.blend.alpha != 1.0 || params.blend.beta != 0.0;
  int32 slot = 0;
  for (int32 first_row = begin; first_row < end; first_row += kHigh) {
    wait_for_copies<0>();
    __syncthreads();
    if (first_row + kHigh < end) bring(Tile::kStep);

    typename Tile::Sums sums = {};
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      Tile::add_row(r, own + Tile::slot_behind(slot, r) * params.row_vectors + lane, weights + lane * kVector, params, sums);
    }
    slot = Tile::slot_behind(slot, Tile::kStep);

    const int32 rows = params.output_rows - first_row;
    if (params.epilogue.is_present) epilogue.finish(params, rows, columns, target, sums);
    if (blends) Tile::blend(params.blend, rows, columns, params, target, sums);
#pragma unroll
    for (int out = 0; out < kHigh; ++out, target += params.output_row) {
      if (out >= rows) break;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        if (n >= columns) continue;
        Vector<T, kVector> vector;
#pragma unroll
        for (int i = 0; i < kVector; ++i) vector.at[i] = narrow<T>(sums[out][n][i]);
        *reinterpret_cast<Vector<T, kVector>*>(const_cast<T*>(nth_place(target, n, output_step))) = vector;
      }
    }
  }
}

}  // namespace dnncore::depthwise
