// Rows of channels-last images of few channels, laid out for the matrix units of sm_90 by threads: a network's first layer, whose
// pixels of 3 channels are 6 bytes, which no copy of the engine begins at. But the values that a row of a filter meets are neighbours
// in a row of x: 7 taps of 3 channels are 21, or 3 chunks of 8. Threads load these chunks from wherever they begin, and lay
// them out as the units read operands that are not swizzled: a place is one chunk of 8 neighbouring outputs, 8 rows of 16 bytes.
//
//       x, rows that some rows of outputs meet        stage: a place is 8 outputs x 16 bytes
//
//       [ .......21 values....... ]                   row 0:  [chunk 0] [chunk 1] [chunk 2]  of outputs 0 to 7, then of the next eight
//             [ .......21 values....... ]             row 1:  [chunk 0] [chunk 1] [chunk 2]
//       output 0 and output 1, 6 values on            ...
//
// The next row of outputs begins `row_step` rows of the stage further on, so that a row of x is laid out once for all rows of the
// filters that meet it.
#pragma once

#include "dnncore/common/tensor.cuh"
#include "dnncore/ptx/warpgroup.cuh"

namespace dnncore::wgmma {

inline constexpr int kChunk = 8;         // values
inline constexpr int kChunkOutputs = 8;  // of a place
inline constexpr uint32 kPlaceBytes = kChunkOutputs * sizeof(uint4);

// x and its stages; IMAGE_ROWS of convolution/image_rows.py.
struct ImageRows {
  const void* images;
  int64 strides[2];         // from image to image and from row to row
  int64 step;               // from a row to the next that a thread loads
  int32 chunks;             // of a row of a filter
  int32 pitch;              // places from a row of the stage to the next
  int32 stage_rows;
  int32 rows_at_once;       // of a stage, that a warpgroup lays out
  int32 height;             // of x, and the values of its rows
  int32 row_values;
  int32 row_step;           // of x, from an output to the next one below, and beside it in values
  int32 value_step;
  int32 rows_before;        // padding, and the same in values
  int32 values_before;
  uint32 tail[kChunk / 2];  // bits of the last chunk that are values
  uint32 even;              // whether rows begin and end at pairs of values
};

// The chunks of a warpgroup on their way from x into a stage. A thread has one chunk of one of kGroups * 8 neighbouring outputs, in
// every so-manyeth row.
template <typename T, int kGroups>
class ChunkLoads {
  static constexpr int kAtOnce = 7, kOutputs = kGroups * kChunkOutputs;

public:
  __device__ __forceinline__ explicit ChunkLoads(const ImageRows& x) {
    const int place = static_cast<int>(threadIdx.x) % kWarpgroup / kOutputs;
    const bool is_idle = place >= x.rows_at_once * x.chunks;
    chunk_ = place % x.chunks, row_ = is_idle ? x.stage_rows : place / x.chunks;
  }
  // Of a stage, at once.
  static __device__ __forceinline__ int rows(const ImageRows& x) { return kAtOnce * x.rows_at_once; }

  // From the stage's row `start` on; `first` is an output with `outputs` neighbours, itself among them: others meet zeros.
  template <typename Pixel>
  __device__ __forceinline__ void begin(const ImageRows& x, const Pixel& first, int start, int outputs = kOutputs) {
    const int32 left = (first.column + output()) * x.value_step - x.values_before + chunk_ * kChunk;
    const int32 top = first.row * x.row_step - x.rows_before;
    const bool in_pairs = x.even && reinterpret_cast<uint64>(x.images) % sizeof(uint32) == 0;
    const T* from = static_cast<const T*>(x.images) + first.image * x.strides[0] + (top + start + row_) * x.strides[1] +
                    (in_pairs ? left & ~1 : left);
    shift_ = in_pairs ? (left & 1) * 16 : 0;  // the first value may be the second of a pair
    const auto row_values = static_cast<uint32>(output() < outputs ? x.row_values : 0);
    const auto each_row = [&](const auto& load) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i, from += x.step) {
        const int32 row = start + row_ + i * x.rows_at_once;
        if (row >= x.stage_rows) break;
        load(words_[i], from, static_cast<uint32>(top + row) < static_cast<uint32>(x.height) ? row_values : 0);
      }
    };
    if (in_pairs) {
      each_row([&](auto& words, const T* from, uint32 values) { load_pairs(words, from, left & ~1, values); });
    } else {
      each_row([&](auto& words, const T* from, uint32 values) { load_each(words, from, left, values); });
    }
  }

  __device__ __forceinline__ void lay_out(const ImageRows& x, int start, uint4* stage) const {
    const int group = output() / kChunkOutputs;
    uint4* to = stage + ((start + row_) * x.pitch + group * x.chunks + chunk_) * kChunkOutputs + output() % kChunkOutputs;
    uint32 kept[kChunk / 2];
#pragma unroll
    for (int j = 0; j < kChunk / 2; ++j) kept[j] = chunk_ + 1 == x.chunks ? x.tail[j] : ~0U;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i, to += x.rows_at_once * x.pitch * kChunkOutputs) {
      if (start + row_ + i * x.rows_at_once >= x.stage_rows) break;
      uint32 chunk[kChunk / 2];
#pragma unroll
      for (int j = 0; j < kChunk / 2; ++j) {
        chunk[j] = __funnelshift_r(words_[i][j], words_[i][j + 1], shift_) & kept[j];
      }
      *to = {chunk[0], chunk[1], chunk[2], chunk[3]};
    }
  }

private:
  static __device__ __forceinline__ int output() { return static_cast<int>(threadIdx.x) % kOutputs; }

  // The pairs from one on, which begins at a place of a row of so many values; zeros beyond it. Rows are whole pairs.
  static __device__ __forceinline__ void load_pairs(
      uint32 (&words)[kChunk / 2 + 1], const T* from, int32 place, uint32 values) {
#pragma unroll
    for (int j = 0; j < kChunk / 2 + 1; ++j) {
      const bool exists = static_cast<uint32>(place + 2 * j) < values;
      words[j] = exists ? reinterpret_cast<const uint32*>(from)[j] : 0;
    }
  }

  // The values themselves, of any row.
  static __device__ __forceinline__ void load_each(
      uint32 (&words)[kChunk / 2 + 1], const T* from, int32 place, uint32 values) {
    const auto value = [&](int i) { return static_cast<uint32>(place + i) < values ? uint32{from[i].bits} : 0; };
#pragma unroll
    for (int j = 0; j < kChunk / 2; ++j) words[j] = value(2 * j) | value(2 * j + 1) << 16;
    words[kChunk / 2] = 0;
  }

  uint32 words_[kAtOnce][kChunk / 2 + 1];
  uint32 shift_;
  int chunk_;
  int row_;
};

}  // namespace dnncore::wgmma
