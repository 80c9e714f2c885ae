// Transitions of an mbarrier: see mbarrier_state.h.
#include "mbarrier_state.h"

namespace emu {
namespace {

constexpr uint32_t kPhaseBits = 3, kCountBits = 20, kTxBits = 21;
constexpr uint32_t kExpectedAt = kPhaseBits;
constexpr uint32_t kPendingAt = kExpectedAt + kCountBits;
constexpr uint32_t kTxAt = kPendingAt + kCountBits;
static_assert(kTxAt + kTxBits == 64);

std::string beyond(int64_t tx) {
  const std::string most = std::to_string(MbarrierState::kMaxCount);
  return "its tx-count becomes " + std::to_string(tx) + ", beyond " + most + " bytes either way";
}

}  // namespace

MbarrierState MbarrierState::unpack(uint64_t word) {
  MbarrierState state;
  state.phase = word & (kPhases - 1);
  state.expected = word >> kExpectedAt & kMaxCount;
  state.pending = word >> kPendingAt & kMaxCount;
  state.tx = static_cast<int32_t>(static_cast<int64_t>(word) >> kTxAt);
  return state;
}

uint64_t MbarrierState::pack() const {
  return phase | static_cast<uint64_t>(expected) << kExpectedAt | static_cast<uint64_t>(pending) << kPendingAt |
         static_cast<uint64_t>(static_cast<int64_t>(tx)) << kTxAt;
}

std::string MbarrierState::arrive(uint32_t count) {
  if (count == 0 || count > kMaxCount) return "an arrival with count " + std::to_string(count);
  if (count > pending) {
    const char* what = count == 1 ? " more arrival" : " more arrivals";
    return std::to_string(count) + what + " in a phase that misses " + std::to_string(pending) + " of " + std::to_string(expected);
  }
  pending -= count;
  return "";
}

std::string MbarrierState::drop(uint32_t count) {
  if (count > expected) return "arrive_drop of " + std::to_string(count) + " of " + std::to_string(expected) + " expected arrivals";
  if (std::string problem = arrive(count); !problem.empty()) return problem;
  expected -= count;
  return "";
}

std::string MbarrierState::announce_arrival() {
  if (pending == kMaxCount) return "its count of pending arrivals overflows";
  ++pending;
  return "";
}

std::string MbarrierState::expect_bytes(uint32_t bytes) {
  const int64_t sum = static_cast<int64_t>(tx) + bytes;
  if (bytes > kMaxCount || sum > kMaxCount) return beyond(sum);
  tx = static_cast<int32_t>(sum);
  return "";
}

std::string MbarrierState::complete_bytes(uint32_t bytes) {
  const int64_t difference = static_cast<int64_t>(tx) - bytes;
  if (bytes > kMaxCount || difference < -static_cast<int64_t>(kMaxCount)) return beyond(difference);
  tx = static_cast<int32_t>(difference);
  return "";
}

void MbarrierState::advance() {
  phase = (phase + 1) % kPhases;
  pending = expected;
}

}  // namespace emu
