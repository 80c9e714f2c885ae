// What the checker remembers of every byte that kernels can reach: the reserved range of addresses and its shadow arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emu {

// One remembered access of a word.
struct Access {
  uint32_t cluster;   // its number; 0: none
  uint32_t tick;
  uint32_t location;
  uint16_t slot;
  uint8_t mask;       // bytes of the word
  uint8_t flags;
};
inline constexpr uint8_t kStrongAccess = 1;  // atomic, volatile, relaxed, acquire, release
inline constexpr uint8_t kAsyncAccess = 2;   // through the asynchronous proxy

struct alignas(64) Cell {
  Access write;
  Access reads[3];
};

// The range: memory of each device, page-locked memory of the host, then windows of shared memory. Pages are taken when touched.
struct Shadow {
  static constexpr int kDevices = 16;
  static constexpr size_t kBytesOfDevice = 4ull << 30;  // of addresses: freed memory is not used again at once
  static constexpr size_t kDeviceBytes = (kDevices + 1) * kBytesOfDevice;
  static constexpr size_t kWindowBytes = 16ull << 24;       // a cluster of 16 blocks
  static constexpr size_t kWindows = 32;                    // launches at a time
  static constexpr size_t kBytes = kDeviceBytes + kWindows * kWindowBytes;

  char* base = nullptr;
  uint8_t* valid = nullptr;    // of every 8 bytes: how many, from the first, belong to something
  uint8_t* defined = nullptr;  // of every 4 bytes: a mask of those that were written
  Cell* cells = nullptr;       // of every 4 bytes

  size_t offset(const void* p) const { return static_cast<size_t>(static_cast<const char*>(p) - base); }
  bool holds(const void* p) const { return offset(p) < kBytes; }
  char* window(size_t index) const { return base + kDeviceBytes + index * kWindowBytes; }

  void mark_valid(size_t offset, size_t bytes, bool on);    // offset: a multiple of 8
  void mark_defined(size_t offset, size_t bytes, bool on) {
    if (on && of_few_words(offset, bytes)) {
      for (size_t word = offset / 4, end = (offset + bytes) / 4; word < end; ++word) defined[word] = 15;
    } else {
      mark_any_defined(offset, bytes, on);
    }
  }
  bool all_defined(size_t offset, size_t bytes) const {
    if (!of_few_words(offset, bytes)) return all_of_any_defined(offset, bytes);
    uint8_t all = 15;
    for (size_t word = offset / 4, end = (offset + bytes) / 4; word < end; ++word) all &= defined[word];
    return all == 15;
  }

 private:
  static bool of_few_words(size_t offset, size_t bytes) { return (offset | bytes) % 4 == 0 && bytes <= 16; }  // as most accesses are
  void mark_any_defined(size_t offset, size_t bytes, bool on);
  bool all_of_any_defined(size_t offset, size_t bytes) const;
};

[[gnu::visibility("hidden")]] extern Shadow reserved_shadow;  // reserved when the library is loaded
inline Shadow& shadow() { return reserved_shadow; }

}  // namespace emu
