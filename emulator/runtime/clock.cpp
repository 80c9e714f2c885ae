// Happens-before: see clock.h.
#include "clock.h"

namespace emu {

void Knowledge::join(const Knowledge& other) {
  seen.join(other.seen);
  flushed.join(other.flushed);
  exported.join(other.exported);
  dependencies_met = dependencies_met || other.dependencies_met;
  if (!other.foreign || other.foreign == foreign) return;
  if (!foreign) {
    foreign = other.foreign;
    return;
  }
  auto merged = std::make_shared<Foreign>(*foreign);
  for (const auto& [cluster, ticks] : *other.foreign) {
    auto& mine = (*merged)[cluster];
    if (!mine) {
      mine = ticks;
    } else if (mine != ticks) {
      auto both = std::make_shared<Ticks>(*mine);
      both->join(*ticks);
      mine = both;
    }
  }
  foreign = merged;
}

void Knowledge::clear() {
  seen.clear();
  flushed.clear();
  exported.clear();
  foreign.reset();
  dependencies_met = false;
}

}  // namespace emu
