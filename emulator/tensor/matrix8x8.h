// The 8 x 8 matrices of 16-bit elements that ldmatrix, stmatrix and movmatrix move (PTX ISA 9.7.14.5.15 to 17).
#pragma once

#include <cstddef>
#include <cstdint>

namespace emu {

struct Matrix8x8 {
  uint16_t element[8][8];  // a row is what one lane's address names: 16 bytes of shared memory

  // A lane's register holds two neighbours of row lane / 4: of the matrix or of its transpose.
  uint32_t fragment(size_t lane, bool transposed) const {
    const size_t row = lane / 4, column = lane % 4 * 2;
    const uint32_t low = transposed ? element[column][row] : element[row][column];
    const uint32_t high = transposed ? element[column + 1][row] : element[row][column + 1];
    return high << 16 | low;
  }

  void put_fragment(size_t lane, bool transposed, uint32_t value) {
    const size_t row = lane / 4, column = lane % 4 * 2;
    (transposed ? element[column][row] : element[row][column]) = static_cast<uint16_t>(value);
    (transposed ? element[column + 1][row] : element[row][column + 1]) = static_cast<uint16_t>(value >> 16);
  }
};

}  // namespace emu
