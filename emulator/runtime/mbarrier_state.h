// The state of an mbarrier object and its transitions, without threads: PTX ISA 9.7.13.15.
//
// A phase is over when as many arrivals have come as are expected and as many bytes as were announced (the tx-count is zero again).
// The state fits in the object's 8 bytes: phase modulo 8 in 3 bits, expected and pending arrivals in 20 each, the tx-count in 21. A
// kernel may hold on to that word, as the opaque state that an arrival returns.
#pragma once

#include <cstdint>
#include <string>

namespace emu {

struct MbarrierState {
  static constexpr uint32_t kMaxCount = (1u << 20) - 1;   // 9.7.13.15.2: of arrivals, and of bytes either way
  static constexpr uint32_t kPhases = 8;                  // what the word can tell apart

  uint32_t phase = 0;        // modulo kPhases
  uint32_t expected = 0;     // arrivals of each phase
  uint32_t pending = 0;      // ... that this phase misses
  int32_t tx = 0;            // bytes that this phase misses; below zero: they came before they were announced

  static MbarrierState with_count(uint32_t count) { return {0, count, count, 0}; }
  static MbarrierState unpack(uint64_t word);
  uint64_t pack() const;

  // Each says what is wrong, or nothing. None of them ends the phase: that is advance()'s.
  std::string arrive(uint32_t count);
  std::string drop(uint32_t count);          // arrives, and is not expected in later phases
  std::string announce_arrival();            // one more arrival in this phase: cp.async.mbarrier.arrive without .noinc
  std::string expect_bytes(uint32_t bytes);
  std::string complete_bytes(uint32_t bytes);

  bool over() const { return pending == 0 && tx == 0; }
  void advance();
};

}  // namespace emu
