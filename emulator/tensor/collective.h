// Meeting of a whole warp: what .sync.aligned asks of the matrix instructions, all of which need 32 lanes.
#pragma once

#include <array>

#include "../runtime/warp.h"

namespace emu {

template <typename Lane>
using Lanes = std::array<Lane*, 32>;

// Every lane brings `mine`; the last one runs work(lanes) for all. `what` outlives the meeting.
template <typename Lane, typename Work>
void meet_in_full(Thread& self, const char* what, uint32_t location, Lane& mine, const Work& work) {
  if (whole_warp(self) != kFullWarp) {
    fail(self, location, printf_string("%s: the block's last warp has fewer than 32 threads", what));
  }
  meet(self, kFullWarp, what, location, &mine, [&work](void* const* brought) {
    Lanes<Lane> lanes;
    for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<Lane*>(brought[i]);
    work(lanes);
  });
}

}  // namespace emu
