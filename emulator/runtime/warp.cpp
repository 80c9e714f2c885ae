// Warp collectives: meeting, and the ones that need nothing else (PTX ISA 9.7.13: vote, match, redux, elect, activemask, bar.warp; 9.7.9.6
// shfl).
#include "warp.h"

#include "scheduler.h"

#include <algorithm>
#include <bit>

namespace emu {

namespace {

uint32_t bit(const Thread& t) { return 1u << t.lane; }

Meeting& join_meeting(Thread& self, uint32_t mask, const char* what, uint32_t location, bool orders_memory) {
  auto& meetings = self.block->warps[self.warp].meetings;
  for (auto& m : meetings) {
    if (m->mask != mask || m->arrived & bit(self)) continue;
    if (orders_memory && m->orders_memory) return *m;
    if (m->location != location || m->what != what) {  // both are constants of one place in the code
      fail(self, location,
           printf_string("warp divergence: lane %u is at %s while lanes %08x of its warp are at %s (%s)", self.lane, what, m->arrived,
                         m->what, place(*self.cluster->launch->module, m->location).c_str()));
    }
    return *m;
  }
  auto& spare = self.block->warps[self.warp].spare;
  meetings.push_back(spare ? std::move(spare) : std::make_unique<Meeting>());
  Meeting& m = *meetings.back();
  m.mask = mask;
  m.arrived = 0;
  m.what = what;
  m.location = location;
  m.orders_memory = orders_memory;
  std::fill(std::begin(m.lanes), std::end(m.lanes), nullptr);
  m.point.knowledge.clear();
  return m;
}

std::unique_ptr<Meeting> close_meeting(Thread& self, const Meeting& which) {
  auto& meetings = self.block->warps[self.warp].meetings;
  for (auto& m : meetings) {
    if (m.get() != &which) continue;
    std::swap(m, meetings.back());
    auto closed = std::move(meetings.back());
    meetings.pop_back();
    return closed;
  }
  return nullptr;
}

bool all_here(const Thread& t, const Meeting& m) {
  const uint32_t excused = m.orders_memory ? t.block->warps[t.warp].returned : 0;
  return !(m.mask & ~(m.arrived | excused));
}

// Those who wait go on. What it is made of is there for the warp's next one.
void end_meeting(Thread& self, const Meeting& m) {
  auto closed = close_meeting(self, m);
  if (closed->orders_memory) {
    for (Thread* t : closed->waiting.threads) acquire(*t, closed->point);
    if (self.state != State::kDone) acquire(self, closed->point);
  }
  wake_all(*self.cluster, closed->waiting);
  self.block->warps[self.warp].spare = std::move(closed);
}

}  // namespace

uint32_t whole_warp(const Thread& t) {
  const uint32_t lanes = std::min(32u, t.block->num_threads - t.warp * 32);
  return lanes == 32 ? kFullWarp : (1u << lanes) - 1;
}

void meet(Thread& self, uint32_t mask, const char* what, uint32_t location, void* mine, const std::function<void(void* const* lanes)>& work,
          bool orders_memory) {
  mask &= whole_warp(self);
  if (!(mask & bit(self))) fail(self, location, printf_string("%s: its mask %08x lacks the calling lane %u", what, mask, self.lane));
  if (mask == bit(self)) {
    void* lanes[32] = {};
    lanes[self.lane] = mine;
    work(lanes);
    return;
  }
  Meeting& m = join_meeting(self, mask, what, location, orders_memory);
  m.lanes[self.lane] = mine;
  m.arrived |= bit(self);
  if (orders_memory) release(self, m.point);
  if (!all_here(self, m)) {
    suspend(self, m.waiting, [&m] { return printf_string("lanes %08x at %s", m.mask & ~m.arrived, m.what); }, location);
    return;  // the last lane has done the work and, for memory, the acquiring: the meeting is gone
  }
  work(m.lanes);
  end_meeting(self, m);
}

void leave_meetings(Thread& self) {
  Warp& warp = self.block->warps[self.warp];
  warp.returned |= bit(self);
  for (size_t i = 0; i < warp.meetings.size();) {
    const Meeting& m = *warp.meetings[i];
    if (m.orders_memory && all_here(self, m)) {
      end_meeting(self, m);  // another one takes its place in the list
    } else {
      ++i;
    }
  }
}

void end_convergence(Warp& warp) {
  for (Thread* t : warp.converging.threads) {
    t->active = 0;
    for (const Thread* other : warp.converging.threads) {
      if (other->active_at == t->active_at) t->active |= bit(*other);
    }
  }
  wake_all(*warp.converging.threads.front()->cluster, warp.converging);
}

}  // namespace emu

using namespace emu;

namespace {

struct ShuffleLane {
  uint32_t value, b, c, result;
  bool in_range;
};

// PTX ISA 9.7.9.6: the lane to read from, or the lane itself when that is out of its segment.
void shuffle(EmuShuffle mode, void* const* lanes) {
  for (uint32_t lane = 0; lane < 32; ++lane) {
    auto* self = static_cast<ShuffleLane*>(lanes[lane]);
    if (!self) continue;
    const uint32_t clamp = self->c & 31, segment = self->c >> 8 & 31, b = self->b & 31;
    const uint32_t last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    int from = 0;
    switch (mode) {
      case EMU_UP: from = static_cast<int>(lane) - static_cast<int>(b); self->in_range = from >= static_cast<int>(last); break;
      case EMU_DOWN: from = static_cast<int>(lane + b); self->in_range = from <= static_cast<int>(last); break;
      case EMU_BFLY: from = static_cast<int>(lane ^ b); self->in_range = from <= static_cast<int>(last); break;
      case EMU_IDX: from = static_cast<int>(first | (b & ~segment)); self->in_range = from <= static_cast<int>(last); break;
    }
    if (!self->in_range) from = static_cast<int>(lane);
    const auto* source = static_cast<const ShuffleLane*>(lanes[from & 31]);
    self->result = source ? source->value : self->value;  // an inactive source: undefined
  }
}

}  // namespace

extern "C" {

uint32_t emu_shfl(EmuThread* t, EmuShuffle mode, uint32_t value, uint32_t b, uint32_t c, uint32_t mask, bool* in_range, uint32_t location) {
  ShuffleLane mine{value, b, c, 0, false};
  meet(thread_of(t), mask, "shfl.sync", location, &mine, [mode](void* const* lanes) { shuffle(mode, lanes); });
  if (in_range) *in_range = mine.in_range;
  return mine.result;
}

uint32_t emu_vote(EmuThread* t, EmuVote op, bool predicate, uint32_t mask, uint32_t location) {
  struct Lane {
    bool predicate;
    uint32_t ballot, members;
  } mine{predicate, 0, 0};
  meet(thread_of(t), mask, "vote.sync", location, &mine, [](void* const* lanes) {
    uint32_t ballot = 0, members = 0;
    for (uint32_t i = 0; i < 32; ++i) {
      if (!lanes[i]) continue;
      members |= 1u << i;
      ballot |= static_cast<uint32_t>(static_cast<Lane*>(lanes[i])->predicate) << i;
    }
    for (uint32_t i = 0; i < 32; ++i) {
      if (lanes[i]) static_cast<Lane*>(lanes[i])->ballot = ballot, static_cast<Lane*>(lanes[i])->members = members;
    }
  });
  switch (op) {
    case EMU_VOTE_ALL: return mine.ballot == mine.members;
    case EMU_VOTE_ANY: return mine.ballot != 0;
    case EMU_VOTE_UNI: return mine.ballot == 0 || mine.ballot == mine.members;
    case EMU_VOTE_BALLOT: return mine.ballot;
  }
  return 0;
}

uint32_t emu_match(EmuThread* t, bool all, uint64_t value, uint32_t mask, bool* same, uint32_t location) {
  struct Lane {
    uint64_t value;
    uint32_t equal, members;
  } mine{value, 0, 0};
  meet(thread_of(t), mask, all ? "match.all.sync" : "match.any.sync", location, &mine, [](void* const* lanes) {
    for (uint32_t i = 0; i < 32; ++i) {
      auto* self = static_cast<Lane*>(lanes[i]);
      if (!self) continue;
      for (uint32_t j = 0; j < 32; ++j) {
        const auto* other = static_cast<const Lane*>(lanes[j]);
        if (!other) continue;
        self->members |= 1u << j;
        self->equal |= static_cast<uint32_t>(other->value == self->value) << j;
      }
    }
  });
  const bool everywhere = mine.equal == mine.members;
  if (same) *same = everywhere;
  return all ? (everywhere ? mine.members : 0) : mine.equal;
}

uint32_t emu_redux(EmuThread* t, EmuReduce op, EmuType type, uint32_t value, uint32_t mask, uint32_t location) {
  struct Lane {
    uint32_t value, result;
  } mine{value, 0};
  auto combine = [op, type](uint32_t a, uint32_t b) {
    const bool b_less = type == EMU_S32 ? static_cast<int32_t>(b) < static_cast<int32_t>(a) : b < a;
    switch (op) {
      case EMU_ADD: return a + b;
      case EMU_MIN: return b_less ? b : a;
      case EMU_MAX: return b_less ? a : b;
      case EMU_AND: return a & b;
      case EMU_OR: return a | b;
      default: return a ^ b;
    }
  };
  meet(thread_of(t), mask, "redux.sync", location, &mine, [combine](void* const* lanes) {
    bool first = true;
    uint32_t result = 0;
    for (uint32_t i = 0; i < 32; ++i) {
      if (!lanes[i]) continue;
      const uint32_t v = static_cast<Lane*>(lanes[i])->value;
      result = first ? v : combine(result, v);
      first = false;
    }
    for (uint32_t i = 0; i < 32; ++i) {
      if (lanes[i]) static_cast<Lane*>(lanes[i])->result = result;
    }
  });
  return mine.result;
}

uint32_t emu_elect(EmuThread* t, uint32_t mask, bool* elected, uint32_t location) {
  uint32_t leader = 0;
  meet(thread_of(t), mask, "elect.sync", location, &leader, [](void* const* lanes) {
    uint32_t first = 0;
    while (!lanes[first]) ++first;
    for (uint32_t i = 0; i < 32; ++i) {
      if (lanes[i]) *static_cast<uint32_t*>(lanes[i]) = first;
    }
  });
  if (elected) *elected = leader == t->lane;
  return leader;
}

void emu_syncwarp(EmuThread* t, uint32_t mask, uint32_t location) {
  meet(thread_of(t), mask, "bar.warp.sync", location, nullptr, [](void* const*) {}, true);
}

// Lanes of a GPU's warp run together as far as they can. Here they come one after the other: each waits until no other can run.
uint32_t emu_activemask(EmuThread* t) {
  Thread& self = thread_of(t);
  Warp& warp = self.block->warps[self.warp];
  if (warp.converging.threads.empty()) worker().converging.push_back(&warp);
  self.active_at = __builtin_return_address(0);
  suspend(self, warp.converging, [] { return "activemask"; }, 0);
  return self.active;
}

}
