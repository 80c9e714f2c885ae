// Rows of channels-last images of few channels, laid out for the matrix units of sm_90 by threads: a network's first layer, whose
// pixels of 3 channels are 6 bytes, which no copy of the engine begins at. But the values that a row of a filter meets are
// neighbours in a row of x: 7 taps of 3 channels are 21, or 3 chunks of 8 (of 32 bits: 6 of 4; of int8: 2 of 16). Threads load
// these chunks from wherever they begin, and lay them out as the units read operands that are not swizzled: a place is one chunk
// of 8 neighbouring outputs, 8 rows of 16 bytes. What is float becomes tf32 on the way.
//
//       x, rows that some rows of outputs meet        stage: a place is 8 outputs x 16 bytes
//
//       [ .......21 values....... ]                   row 0:  [chunk 0] [chunk 1] [chunk 2]  of outputs 0 to 7, then of the next eight
//             [ .......21 values....... ]             row 1:  [chunk 0] [chunk 1] [chunk 2]
//       output 0 and output 1, 6 values on            ...
//
// The next row of outputs begins `row_step` rows of the stage further on, so that a row of x is laid out once for all rows of the
// filters that meet it. Where x is pixels of 8 bits, a chunk is what they become: pixel_table.cuh.
#pragma once

#include <type_traits>

#include "dnncore/common/tensor.cuh"
#include "dnncore/ptx/warpgroup.cuh"
#include "dnncore/ptx/warpgroup_matrix.cuh"

namespace dnncore::wgmma {

template <typename T>
inline constexpr int kChunk = static_cast<int>(sizeof(uint4) / sizeof(T));  // values
inline constexpr int kChunkWords = sizeof(uint4) / sizeof(uint32);
inline constexpr int kChunkOutputs = 8;  // of a place
inline constexpr uint32 kPlaceBytes = kChunkOutputs * sizeof(uint4);

// x and its stages; IMAGE_ROWS of convolution/image_rows.py.
struct ImageRows {
  const void* images;
  int64 strides[2];          // from image to image and from row to row
  int64 step;                // from a row to the next that a thread loads
  int32 chunks;              // of a row of a filter
  int32 pitch;               // places from a row of the stage to the next
  int32 stage_rows;
  int32 rows_at_once;        // of a stage, that a warpgroup lays out
  int32 height;              // of x, and the values of its rows
  int32 row_values;
  int32 row_step;            // of x, from an output to the next one below, and beside it in values
  int32 value_step;
  int32 rows_before;         // padding, and the same in values
  int32 values_before;
  uint32 tail[kChunkWords];  // bits of the last chunk that are values
  uint32 in_words;           // whether rows begin and end at words of 4 bytes
};

template <typename T>
__device__ __forceinline__ uint32 bits_of(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(value);
  } else {
    return value.bits;
  }
}

// The bits of a value as the matrix units are to read it.
template <typename T>
__device__ __forceinline__ uint32 operand_bits(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return tf32_from_float(value);
  } else {
    return bits_of(value);
  }
}

// What chunks of T become where x is what is multiplied: themselves. Zeros that stand for what is not in x stay zeros.
template <typename T>
struct AsRead {
  static constexpr bool kKeepsZeros = true;
  __device__ __forceinline__ AsRead from(int) const { return *this; }
  __device__ __forceinline__ void convert(const uint32 (&words)[kChunkWords], uint32 (&chunk)[kChunkWords]) const {
#pragma unroll
    for (int j = 0; j < kChunkWords; ++j) {
      chunk[j] = std::is_same_v<T, float> ? operand_bits(__uint_as_float(words[j])) : words[j];
    }
  }
};

// The chunks of a warpgroup on their way from x into a stage. A thread has one chunk of one of kGroups * 8 neighbouring outputs, in
// every so-manyeth row. T is what is multiplied, Read what x consists of: the same, or uint8 for 16 bits.
template <typename T, typename Read, int kGroups>
class ChunkLoads {
  static constexpr int kOutputs = kGroups * kChunkOutputs, kChunk = wgmma::kChunk<T>;
  static constexpr int kBits = 8 * sizeof(Read), kOfWord = 32 / kBits, kWords = kChunk / kOfWord;
  static constexpr int kLoadedWords = kWords + (kOfWord > 1);  // the first value may be within a word
  static constexpr int kAtOnce = kOfWord == 1 ? 9 : sizeof(T) == 1 ? 6 : 7;  // of a thread's rows, that there are registers for

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
    left_ = (first.column + output()) * x.value_step - x.values_before + chunk_ * kChunk;
    top_ = first.row * x.row_step - x.rows_before;
    row_values_ = static_cast<uint32>(output() < outputs ? x.row_values : 0);
    const bool in_words = kOfWord == 1 || (x.in_words && reinterpret_cast<uint64>(x.images) % sizeof(uint32) == 0);
    const int32 left = in_words ? left_ & ~(kOfWord - 1) : left_;
    const Read* from =
        static_cast<const Read*>(x.images) + first.image * x.strides[0] + (top_ + start + row_) * x.strides[1] + left;
    shift_ = (left_ - left) * kBits;
    const auto each_row = [&](const auto& load) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i, from += x.step) {
        const int32 row = start + row_ + i * x.rows_at_once;
        if (row >= x.stage_rows) break;
        load(words_[i], from, is_inside(x, row) ? row_values_ : 0);
      }
    };
    if (in_words) {
      each_row([&](auto& words, const Read* from, uint32 values) { load_words(words, from, left, values); });
    } else {
      each_row([&](auto& words, const Read* from, uint32 values) { load_each(words, from, left, values); });
    }
  }

  // What was begun, as `values` has it: AsRead or a PixelTable.
  template <typename Values = AsRead<T>>
  __device__ __forceinline__ void lay_out(const ImageRows& x, int start, uint4* stage, const Values& values = {}) const {
    const int group = output() / kChunkOutputs;
    uint4* to = stage + ((start + row_) * x.pitch + group * x.chunks + chunk_) * kChunkOutputs + output() % kChunkOutputs;
    const auto conversion = values.from(chunk_ * kChunk);
    uint32 kept[kChunkWords];
#pragma unroll
    for (int j = 0; j < kChunkWords; ++j) {
      kept[j] = chunk_ + 1 == x.chunks ? x.tail[j] : ~0U;
      if constexpr (!Values::kKeepsZeros) kept[j] &= (exists(2 * j) ? 0xffffU : 0U) | (exists(2 * j + 1) ? 0xffff0000U : 0U);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i, to += x.rows_at_once * x.pitch * kChunkOutputs) {
      const int32 row = start + row_ + i * x.rows_at_once;
      if (row >= x.stage_rows) break;
      const uint32 row_kept = Values::kKeepsZeros || is_inside(x, row) ? ~0U : 0U;
      uint32 words[kWords], chunk[kChunkWords];
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        if constexpr (kOfWord == 1) {
          words[j] = words_[i][j];
        } else {
          words[j] = __funnelshift_r(words_[i][j], words_[i][j + 1], shift_);
        }
      }
      conversion.convert(words, chunk);
#pragma unroll
      for (int j = 0; j < kChunkWords; ++j) chunk[j] &= kept[j] & row_kept;
      *to = {chunk[0], chunk[1], chunk[2], chunk[3]};
    }
  }

private:
  static __device__ __forceinline__ int output() { return static_cast<int>(threadIdx.x) % kOutputs; }

  // Whether a value of a row, counted from the chunk's first, and whether a row of the stage is one of x.
  __device__ __forceinline__ bool exists(int value) const { return static_cast<uint32>(left_ + value) < row_values_; }
  __device__ __forceinline__ bool is_inside(const ImageRows& x, int32 row) const {
    return static_cast<uint32>(top_ + row) < static_cast<uint32>(x.height);
  }

  // The words from one on, which begins at a place of a row of so many values; zeros beyond it. Rows are whole words.
  static __device__ __forceinline__ void load_words(
      uint32 (&words)[kLoadedWords], const Read* from, int32 place, uint32 values) {
#pragma unroll
    for (int j = 0; j < kLoadedWords; ++j) {
      const bool exists = static_cast<uint32>(place + kOfWord * j) < values;
      words[j] = exists ? reinterpret_cast<const uint32*>(from)[j] : 0;
    }
  }

  // The values themselves, of any row.
  static __device__ __forceinline__ void load_each(
      uint32 (&words)[kLoadedWords], const Read* from, int32 place, uint32 values) {
    const auto value = [&](int i) { return static_cast<uint32>(place + i) < values ? bits_of(from[i]) : 0; };
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      words[j] = 0;
#pragma unroll
      for (int i = 0; i < kOfWord; ++i) words[j] |= value(j * kOfWord + i) << i * kBits;
    }
    if constexpr (kLoadedWords > kWords) words[kWords] = 0;
  }

  uint32 words_[kAtOnce][kLoadedWords];
  uint32 shift_;
  int32 left_;         // of the first value, and of the stage's first row, in x
  int32 top_;
  uint32 row_values_;  // that there are for this output
  int chunk_;
  int row_;
};

}  // namespace dnncore::wgmma
