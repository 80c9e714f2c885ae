// What pixels of 8 bits become, in shared memory, for threads that lay out rows of them: image_rows.cuh.
//
//       [channel][pixel][copy]     a word each: the value twice
//
// Neighbouring threads look up different copies, which lie in different banks, so that few of them wait for each other, whatever
// the pixels are. A value is there twice, so that one instruction puts those of two words together.
#pragma once

#include "dnncore/convolution/image_rows.cuh"

namespace dnncore::wgmma {

template <typename T>
class PixelTable {
  static constexpr int kPixelValues = 256, kCopies = 4, kChunk = wgmma::kChunk<T>;
  static constexpr int kEntryBits = 4;  // of an address, within an entry: all copies
  static_assert(kCopies * sizeof(uint32) == 1 << kEntryBits);

public:
  static constexpr bool kKeepsZeros = false;

  // Of so many channels, at a multiple of 16 bytes.
  __device__ __forceinline__ PixelTable(uint32* table, int32 channels) : table_(table), channels_(channels) {}

  static __device__ __forceinline__ int words(int32 channels) { return channels * kPixelValues * kCopies; }

  // From [channel][pixel], by the whole block: rounded as on a way through memory.
  __device__ __forceinline__ void load(const float* values) const {
    for (int i = static_cast<int>(threadIdx.x); i < words(channels_); i += static_cast<int>(blockDim.x)) {
      table_[i] = bits_of(narrow<T>(values[i / kCopies])) * 0x10001U;
    }
  }

  // Of a thread's chunks.
  class Lookups {
    static_assert(sizeof(T) == 2);

  public:
    __device__ __forceinline__ Lookups(const uint32* table, int channel, int32 channels)
        : table_(reinterpret_cast<const unsigned char*>(table)) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        columns_[i] = channel * kPixelValues << kEntryBits | threadIdx.x % kCopies * sizeof(uint32);
        channel = channel + 1 == channels ? 0 : channel + 1;
      }
    }

    // Whatever is not in x is looked up too, as a pixel of 0, so that no load waits for a branch.
    __device__ __forceinline__ void convert(const uint32 (&words)[kChunk / 4], uint32 (&chunk)[kChunkWords]) const {
      uint32 found[kChunk];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        found[i] = *reinterpret_cast<const uint32*>(table_ + (entry_of(words[i / 4], i % 4) | columns_[i]));
      }
#pragma unroll
      for (int j = 0; j < kChunkWords; ++j) chunk[j] = __byte_perm(found[2 * j], found[2 * j + 1], 0x5410);
    }

  private:
    // Of one of a word's pixels, in bytes.
    static __device__ __forceinline__ uint32 entry_of(uint32 word, int pixel) {
      const int down = pixel * 8 - kEntryBits;
      return (down < 0 ? word << -down : word >> down) & (kPixelValues - 1) << kEntryBits;
    }

    const unsigned char* table_;
    uint32 columns_[kChunk];  // of the table: channel and copy, in bytes
  };

  // For chunks that begin at a value of a row of the filters.
  __device__ __forceinline__ Lookups from(int value) const { return {table_, value % channels_, channels_}; }

private:
  uint32* table_;
  int32 channels_;
};

}  // namespace dnncore::wgmma
