// Depthwise convolution with small square filters that are not dilated, on aligned rows or vectors of channels:
// forward; backward-data of stride 1, which is forward with the filter turned round; and backward-data of stride 2, where
// an output meets every other tap (Spread). A thread computes a tile, few rows of few columns. All loads of a tile are under way before the first element is widened; each element is widened
// once and meets all its taps in registers, which bound the size of a tile. The number of taps is a template argument,
// and the padding in front of a row is half a filter: tiles then start at aligned places, and a row needs beside its
// tile only a halo of half a filter, which comes from the L1 cache.
//
//              left    16 bytes of a row   right
//             +------+-------+-------+------+
//             | halo | piece | piece | halo |     kStride * (kTileRows - 1) + kFilter rows of the source
//             +------+-------+-------+------+
//                    +---------------+            kTileRows rows of outputs, 16 bytes / kStride wide
//                    |     tile      |
//                    +---------------+            channels innermost: kHigh x kColumns places of kVector channels
//
// Of stride 2 backward it is the tile that is twice as high and wide as what it reads, and a row of it has 16 bytes.
//
// Padding consists of zeros that are multiplied, so a filter that is not finite shows at the border, backward too.
#pragma once

#include "dnncore/common/factors.cuh"
#include "dnncore/convolution/depthwise.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore::depthwise {

constexpr int kTileRows = 4;

// Mirrored by _PARAMS in dnncore/cuda/convolution/depthwise_tiles.py. Rows and columns are those of the tensors,
// strides are in elements.
struct TileParams {
  Blend blend;
  Epilogue epilogue;        // of a fused convolution
  const void* source;
  const void* w;
  void* output;
  int64 source_image;
  int64 source_channel;
  int64 output_image;
  int64 output_channel;
  int64 w_filter;
  int64 w_offset;           // elements from w's address to the tap that the first row and column meet
  int32 w_row;
  int32 w_column;
  int32 source_rows;
  int32 source_columns;
  int32 output_rows;
  int32 output_columns;
  int32 source_row;         // strides
  int32 source_column;
  int32 output_row;
  int32 output_column;
  int32 padding;            // rows
  int32 piece;              // bytes that divide the rows of the source, 8 or 16
  SmallDivisor strips;      // tiles per row of tiles
  SmallDivisor row_tiles;   // rows of tiles
  SmallDivisor channels;
  int32 count;              // tiles; strips of all images where channels are innermost
  int32 chunks;             // as in DataParams
  int32 vectors;
  int32 groups;
  int32 walk;               // rows of tiles that a block walks over
  int32 reads_filters_early;  // whether w is there before the kernel before has ended
};

// Which places of the source the outputs of a tile meet, along an axis: forward, and backward-data of stride 1. Places are counted
// from the first one that the tile's first output meets.
template <int kFilter_, int kStride>
struct Strided {
  static constexpr int kFilter = kFilter_;
  static constexpr int kLeft = (kFilter - 1) / 2;  // of a halo along a row
  static constexpr int kRight = kFilter - kLeft > kStride ? kFilter - kLeft - kStride : 0;

  // Places of the source under so many outputs, and those that they meet.
  __host__ __device__ static constexpr int under(int outputs) { return outputs * kStride; }
  __host__ __device__ static constexpr int met_by(int outputs) { return kStride * (outputs - 1) + kFilter; }
  // The place that an output meets through a tap, -1 where it meets none.
  __host__ __device__ static constexpr int place(int output, int tap) { return output * kStride + tap; }
  // In the source, the first place that tiles from an output on meet.
  __device__ __forceinline__ static int32 first(int32 output, int32 padding) { return output * kStride - padding; }
};

// The same for backward-data of stride 2 and half a filter of padding. Of dx, even places meet the taps that lie an even number of
// taps from the middle one, odd places the others; tiles begin at even ones.
//
//     dx      0     1     2     3        filters of 3 x 3: 0 meets dy 0 through tap 1; 1 meets 0 through 2, and 1 through 0
//     dy      0           1           2
template <int kFilter_>
struct Spread {
  static constexpr int kFilter = kFilter_;
  static constexpr int kHalf = kFilter / 2;
  static constexpr int kLeft = kHalf / 2;
  static constexpr int kRight = (kHalf + 1) / 2;

  __host__ __device__ static constexpr int under(int outputs) { return outputs / 2; }
  __host__ __device__ static constexpr int met_by(int outputs) { return kLeft + under(outputs) + kRight; }
  __host__ __device__ static constexpr int place(int output, int tap) {
    const int twice = output + kHalf - tap;
    return twice % 2 == 0 ? twice / 2 + kLeft : -1;
  }
  __device__ __forceinline__ static int32 first(int32 output, int32) { return output / 2 - kLeft; }
};

// What a tile reads of one row of an image whose columns are innermost, as it is stored: kWide elements in pieces of
// kPiece, and halos.
template <typename T, typename Meeting, int kWide, int kPiece>
struct PlaneRow {
  static constexpr int kLeft = Meeting::kLeft, kRight = Meeting::kRight;
  static constexpr int kAll = kLeft + kWide + kRight;

  Loaded<T, kLeft == 0 ? 1 : kLeft> left;
  Loaded<T, kPiece> pieces[kWide / kPiece];
  Loaded<T, kRight == 0 ? 1 : kRight> right;

  // `place` is the address of `column`, which may lie past the end.
  __device__ __forceinline__ void load(bool inside, const T* place, int32 column, int32 columns) {
    if constexpr (kLeft > 0) left.load_if(inside && column > 0 && column <= columns, place - kLeft);
#pragma unroll
    for (int i = 0; i < kWide / kPiece; ++i) {
      pieces[i].load_if(inside && column + i * kPiece < columns, place + i * kPiece);
    }
    if constexpr (kRight > 0) right.load_if(inside && column + kWide < columns, place + kWide);
  }
  __device__ __forceinline__ void widen_into(Compute<T> (&values)[kAll]) const {
    const auto put = [&](const auto& loaded, int first, auto& part) {
      loaded.widen_into(part);
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(part) / sizeof(part[0])); ++i) values[first + i] = part[i];
    };
    Compute<T> middle[kPiece];
    if constexpr (kLeft > 0) {
      Compute<T> before[kLeft];
      put(left, 0, before);
    }
#pragma unroll
    for (int i = 0; i < kWide / kPiece; ++i) put(pieces[i], kLeft + i * kPiece, middle);
    if constexpr (kRight > 0) {
      Compute<T> after[kRight];
      put(right, kLeft + kWide, after);
    }
  }
};

// The epilogue of a tile of kRows x kColumns places of kVector channels from `channel` on, whose first goes to `target`;
// a residual lies as the output does.
template <typename T, int kRows, int kColumns, int kVector>
__device__ __forceinline__ void finish_tile(
    const TileParams& params, int32 channel, int32 first_row, int32 first_column, const T* target,
    Compute<T> (&sums)[kRows * kColumns * kVector]) {
  const T* const z = static_cast<const T*>(params.epilogue.z) + (target - static_cast<const T*>(params.output));
  const auto residual = [&](int i) {
    const int32 row = i / (kColumns * kVector), column = i / kVector % kColumns;
    const T* const from = z + static_cast<int64>(row) * params.output_row +
                          static_cast<int64>(column) * (kVector == 1 ? 1 : params.output_column) + i % kVector;
    const bool exists = first_row + row < params.output_rows && first_column + column < params.output_columns;
    return exists ? widen(*from) : Compute<T>(0);
  };
  finish<T, kVector>(params.epilogue, channel, residual, sums);
}

// Columns of outputs of a tile of which 16 bytes are the wider one of what is read and what is written.
template <typename T, typename Meeting>
__host__ __device__ constexpr int columns_of_planes() {
  constexpr int kElements = 16 / sizeof(T);
  return Meeting::under(kElements) > kElements ? kElements * kElements / Meeting::under(kElements) : kElements;
}

template <typename T, typename Meeting, int kPieceBytes>
__device__ __forceinline__ void plane_tile(const TileParams& params) {
  using C = Compute<T>;
  constexpr int kFilter = Meeting::kFilter, kColumns = columns_of_planes<T, Meeting>(), kWide = Meeting::under(kColumns);
  constexpr int kRows = Meeting::met_by(kTileRows), kStored = kColumns * kPieceBytes / 16;
  using Row = PlaneRow<T, Meeting, kWide, kWide * kPieceBytes / 16>;
  const int32 item = static_cast<int32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= params.count) return;
  const SmallQuotientRemainder strip = divide(item, params.strips);
  const SmallQuotientRemainder rows = divide(strip.quotient, params.row_tiles);
  const SmallQuotientRemainder image = divide(rows.quotient, params.channels);
  const int32 channel = image.remainder, column = strip.remainder * kWide;
  const int32 first = Meeting::first(rows.remainder * kTileRows, params.padding);
  const T* const source = static_cast<const T*>(params.source) + image.quotient * params.source_image +
                          channel * params.source_channel + column;
  const T* const w = static_cast<const T*>(params.w) + params.w_offset + channel * params.w_filter;

  Row loaded[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int32 row = first + r;
    const bool inside = static_cast<uint32>(row) < static_cast<uint32>(params.source_rows);
    loaded[r].load(inside, source + static_cast<int64>(row) * params.source_row, column, params.source_columns);
  }
  T stored[kFilter][kFilter];
#pragma unroll
  for (int t = 0; t < kFilter; ++t) {
#pragma unroll
    for (int u = 0; u < kFilter; ++u) stored[t][u] = w[t * params.w_row + u * params.w_column];
  }

  C sums[kTileRows][kColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    C values[Row::kAll];
    loaded[r].widen_into(values);
#pragma unroll
    for (int out = 0; out < kTileRows; ++out) {
#pragma unroll
      for (int t = 0; t < kFilter; ++t) {
        if (Meeting::place(out, t) != r) continue;
#pragma unroll
        for (int u = 0; u < kFilter; ++u) {
          const C weight = widen(stored[t][u]);
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            if (Meeting::place(n, u) >= 0) sums[out][n] += weight * values[Meeting::place(n, u)];
          }
        }
      }
    }
  }

  const Factors<C> factors(params.blend);
  const int32 first_column = strip.remainder * kColumns, first_row = rows.remainder * kTileRows;
  T* target = static_cast<T*>(params.output) + image.quotient * params.output_image +
              channel * params.output_channel + static_cast<int64>(first_row) * params.output_row + first_column;
  if (params.epilogue.is_present) {
    finish_tile<T, kTileRows, kColumns, 1>(
        params, channel, first_row, first_column, target, reinterpret_cast<C(&)[kTileRows * kColumns]>(sums));
  }
#pragma unroll
  for (int out = 0; out < kTileRows; ++out) {
#pragma unroll
    for (int n = 0; n < kColumns; n += kStored) {
      if (first_row + out >= params.output_rows || first_column + n >= params.output_columns) continue;
      C values[kStored];
#pragma unroll
      for (int i = 0; i < kStored; ++i) values[i] = sums[out][n + i];
      factors.blend_into(values, target + n);
    }
    target += params.output_row;
  }
}

// Columns are innermost; a thread takes one tile.
template <typename T, typename Meeting>
__device__ void tiles_of_planes(const TileParams& params) {
  let_next_start();
  wait_for_previous();
  if (params.piece == 16) {
    plane_tile<T, Meeting, 16>(params);
  } else {
    plane_tile<T, Meeting, 8>(params);
  }
}

// Channels are innermost: a thread takes tiles of kHigh x kColumns places of kVector channels, one below another.
template <typename T, typename Meeting, int kVector, int kHigh, int kColumns>
__device__ void tiles_of_channels(const TileParams& params) {
  using C = Compute<T>;
  constexpr int kFilter = Meeting::kFilter, kWide = Meeting::met_by(kColumns), kRows = Meeting::met_by(kHigh);
  extern __shared__ __align__(16) unsigned char shared[];
  C* const weights = reinterpret_cast<C*>(shared);  // [kFilter][kFilter][chunk's channels]
  const int32 chunk = blockIdx.x % params.chunks, group = blockIdx.x / params.chunks % params.groups;
  const int32 part = blockIdx.x / params.chunks / params.groups;
  const int32 channels = params.channels.value, width = params.vectors * kVector;
  let_next_start();
  if (!params.reads_filters_early) wait_for_previous();
  for (int32 i = threadIdx.x; i < kFilter * kFilter * width; i += blockDim.x) {
    const int32 channel = chunk * width + i % width, tap = i / width;
    const T* const w = static_cast<const T*>(params.w) + params.w_offset + channel * params.w_filter;
    weights[i] = channel < channels ? widen(w[tap / kFilter * params.w_row + tap % kFilter * params.w_column]) : C(0);
  }
  wait_for_previous();
  __syncthreads();

  const int32 lane = threadIdx.x % params.vectors, channel = chunk * width + lane * kVector;
  const int32 item = group * (static_cast<int32>(blockDim.x) / params.vectors) + threadIdx.x / params.vectors;
  if (channel >= channels || item >= params.count) return;
  const SmallQuotientRemainder image = divide(item, params.strips);
  const int32 first_column = image.remainder * kColumns, column = Meeting::first(first_column, Meeting::kLeft);
  const T* const source = static_cast<const T*>(params.source) + image.quotient * params.source_image + channel +
                          static_cast<int64>(column) * params.source_column;
  T* const output = static_cast<T*>(params.output) + image.quotient * params.output_image + channel +
                    static_cast<int64>(first_column) * params.output_column;
  const int32 source_step = params.source_column * static_cast<int32>(sizeof(T));
  const int32 output_step = params.output_column * static_cast<int32>(sizeof(T));
  const Factors<C> factors(params.blend);
  const int32 end = min((part + 1) * params.walk * kHigh, params.output_rows);
  for (int32 first_row = part * params.walk * kHigh; first_row < end; first_row += kHigh) {
    Loaded<T, kVector> loaded[kRows][kWide];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int32 row = Meeting::first(first_row, params.padding) + r;
      const bool inside = static_cast<uint32>(row) < static_cast<uint32>(params.source_rows);
      const T* const place = source + static_cast<int64>(row) * params.source_row;
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        const bool there = inside && static_cast<uint32>(column + n) < static_cast<uint32>(params.source_columns);
        loaded[r][n].load_if(there, nth_place(place, n, source_step));
      }
    }
    C sums[kHigh][kColumns][kVector] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      C values[kWide][kVector];
#pragma unroll
      for (int n = 0; n < kWide; ++n) loaded[r][n].widen_into(values[n]);
#pragma unroll
      for (int out = 0; out < kHigh; ++out) {
#pragma unroll
        for (int t = 0; t < kFilter; ++t) {
          if (Meeting::place(out, t) != r) continue;
#pragma unroll
          for (int u = 0; u < kFilter; ++u) {
            const auto weight =
                *reinterpret_cast<const Vector<C, kVector>*>(weights + (t * kFilter + u) * width + lane * kVector);
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
              if (Meeting::place(n, u) < 0) continue;
#pragma unroll
              for (int i = 0; i < kVector; ++i) sums[out][n][i] += weight.at[i] * values[Meeting::place(n, u)][i];
            }
          }
        }
      }
    }
    T* target = output + static_cast<int64>(first_row) * params.output_row;
    if (params.epilogue.is_present) {
      finish_tile<T, kHigh, kColumns, kVector>(
          params, channel, first_row, first_column, target, reinterpret_cast<C(&)[kHigh * kColumns * kVector]>(sums));
    }
#pragma unroll
    for (int out = 0; out < kHigh; ++out) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        if (first_row + out >= params.output_rows || first_column + n >= params.output_columns) continue;
        factors.blend_into(sums[out][n], const_cast<T*>(nth_place(target, n, output_step)));
      }
      target += params.output_row;
    }
  }
}

}  // namespace dnncore::depthwise
