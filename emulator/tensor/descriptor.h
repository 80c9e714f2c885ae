// The matrix descriptor of wgmma, and where it puts the elements of a matrix in shared memory (PTX ISA 9.7.15.5.1).
//
// Shared memory is seen in units of 16 bytes, of neighbours along k in a K-major matrix and along M or N in an MN-major one. `lead`
// is the coordinate along which a unit's elements lie, counted in units, and `other` the other one, counted in elements.
//
//   swizzle  K-major, unit (lead, other)                   MN-major, unit (lead, other)
//   none     lead * LBO + other / 8 * SBO + other % 8      lead * SBO + other / 8 * LBO + other % 8
//   W units  lead + other / 8 * SBO + other % 8 * W        lead % W + lead / W * LBO + other / 8 * SBO + other % 8 * W
//
// Swizzling then exchanges units within W: bits 4.. of the address are xor-ed with bits 7.. of it (one, two, three bits for 32, 64,
// 128 bytes). The pattern is that of the address itself, unless the descriptor says by its base offset that it begins elsewhere.
#pragma once

#include <cstdint>

namespace emu {

inline constexpr uint32_t kUnitBytes = 16;

class MatrixDescriptor {
 public:
  explicit constexpr MatrixDescriptor(uint64_t bits = 0) : bits_(bits) {}

  constexpr uint32_t start() const { return field(0, 14) * kUnitBytes; }
  constexpr uint32_t leading() const { return field(16, 14) * kUnitBytes; }  // "leading dimension byte offset", LBO
  constexpr uint32_t stride() const { return field(32, 14) * kUnitBytes; }   // "stride dimension byte offset", SBO
  constexpr uint32_t base_offset() const { return field(49, 3); }            // bits 7 to 9 of where the pattern begins

  // How many units are exchanged with each other: 1, 2, 4 or 8 for no, 32-, 64- and 128-byte swizzling.
  constexpr uint32_t swizzled_units() const {
    constexpr uint32_t units[] = {1, 8, 4, 2};
    return units[field(62, 2)];
  }

  // Null, or what is wrong.
  constexpr const char* problem() const {
    constexpr uint64_t fields = 0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 7ull << 49 | 3ull << 62;
    if (bits_ & ~fields) return "a matrix descriptor with bits outside its fields (an address or offset that is too large?)";
    if (base_offset() && swizzled_units() == 1) return "a matrix descriptor with a base offset and no swizzling";
    return nullptr;
  }

  constexpr uint32_t unit_address(bool mn_major, uint32_t lead, uint32_t other) const {
    const uint32_t width = swizzled_units(), groups = other / 8, inner = other % 8 * width * kUnitBytes;
    if (width == 1) {
      return start() + inner + (mn_major ? lead * stride() + groups * leading() : lead * leading() + groups * stride());
    }
    // In a K-major matrix `lead` never leaves the row of the pattern: an instruction takes two units of it.
    const uint32_t outer = mn_major ? lead / width * leading() : 0, within = mn_major ? lead % width : lead;
    return swizzle(start() + inner + outer + groups * stride() + within * kUnitBytes);
  }

 private:
  constexpr uint32_t field(int first, int width) const { return static_cast<uint32_t>(bits_ >> first & ((1ull << width) - 1)); }

  constexpr uint32_t swizzle(uint32_t address) const {
    return address ^ (((address >> 7) - base_offset()) & (swizzled_units() - 1)) * kUnitBytes;
  }

  uint64_t bits_;
};

}  // namespace emu
