// Which elements of a matrix a lane holds: one rule for all shapes of mma.sync and for the register operands of wgmma.
//
// The figures of PTX ISA 9.7.14.5 and 9.7.15.5 are all of one make. A warp covers a block of 8 rows and 4 words: lane l has the
// word l % 4 of row l / 4 (for B, column l / 4). A word is a 32-bit register with one, two or four neighbouring elements along k,
// or a 64-bit one with an f64. Further registers hold the same word of the next blocks: for A with 16 rows first the rows 8 below,
// then the next columns; for B the next rows. Accumulators lie as A does, with words of two elements whatever their type.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "element.h"

namespace emu {

struct Place {
  int row, column;
};

class Fragment {
 public:
  // A: m x k.
  static constexpr Fragment a(int m, int k, EmuType type) { return {m, k, neighbours(type), false}; }
  // B: k x n, laid out as A's transpose.
  static constexpr Fragment b(int k, int n, EmuType type) { return {n, k, neighbours(type), true}; }
  // C and D: m x n.
  static constexpr Fragment accumulator(int m, int n) { return {m, n, 2, false}; }

  constexpr int elements() const { return lines_ * length_ / 32; }  // of one lane

  // Where element i of a lane is in the matrix. It is asked for every element of every instruction: by shifts, as divisions took a third
  // of the time of wgmma's loops.
  constexpr Place place(int lane, int i) const {
    const int word = i >> log_neighbours_;
    const int line = lane / 4 + 8 * (word & ((1 << log_blocks_down_) - 1));
    const int along = (((word >> log_blocks_down_) * 4 + lane % 4) << log_neighbours_) + (i & ((1 << log_neighbours_) - 1));
    return transposed_ ? Place{along, line} : Place{line, along};
  }

 private:
  constexpr Fragment(int lines, int length, int neighbours, bool transposed)
      : lines_(lines), length_(length), log_neighbours_(log2(neighbours)), log_blocks_down_(log2(lines / 8)), transposed_(transposed) {}

  static constexpr int log2(int power) { return std::countr_zero(static_cast<uint32_t>(power)); }
  static constexpr int neighbours(EmuType type) { return type == EMU_F64 ? 1 : 4 / element_bytes(type); }

  int lines_, length_;   // of A: rows and columns
  int log_neighbours_;   // of the elements in a word
  int log_blocks_down_;  // of the blocks of 8 lines
  bool transposed_;
};

// Element i of a lane's registers or of a piece of memory; an f64 is two registers, the low one first.
[[gnu::always_inline]] inline uint64_t get_element(const void* from, int i, EmuType type) {
  const auto get = [&]<typename Bits>(Bits bits) -> uint64_t {
    memcpy(&bits, static_cast<const char*>(from) + i * static_cast<int>(sizeof bits), sizeof bits);
    return bits;
  };
  switch (element_bytes(type)) {
    case 1: return get(uint8_t{});
    case 2: return get(uint16_t{});
    case 4: return get(uint32_t{});
    default: return get(uint64_t{});
  }
}

[[gnu::always_inline]] inline void put_element(uint32_t* registers, int i, EmuType type, uint64_t value) {
  const auto put = [&]<typename Bits>(Bits bits) {
    memcpy(reinterpret_cast<char*>(registers) + i * static_cast<int>(sizeof bits), &bits, sizeof bits);
  };
  switch (element_bytes(type)) {
    case 1: return put(static_cast<uint8_t>(value));
    case 2: return put(static_cast<uint16_t>(value));
    case 4: return put(static_cast<uint32_t>(value));
    default: return put(value);
  }
}

}  // namespace emu
