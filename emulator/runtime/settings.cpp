// Reads the environment: see settings.h.
#include "settings.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "shadow.h"

namespace emu {
namespace {

uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

void read_schedule(const char* name, Schedule& schedule, uint64_t& seed) {
  const char* text = getenv(name);
  if (!text) return;
  schedule = !strcmp(text, "fwd") ? Schedule::kForward : !strcmp(text, "rev") ? Schedule::kReverse : Schedule::kRandom;
  seed = strtoull(text, nullptr, 10) * 2654435761u + 1;
}

Settings from_environment() {
  Settings s;
  s.devices = static_cast<int>(std::min<uint64_t>(number("EMU_DEVICES", 1), Shadow::kDevices));
  s.memory_bytes = number("EMU_MEM_MB", 1024) << 20;
  if (const char* text = getenv("EMU_COMPUTE_CAPABILITY")) sscanf(text, "%d.%d", &s.capability_major, &s.capability_minor);
  if (const char* text = getenv("EMU_ASYNC")) {
    s.landing = !strcmp(text, "eager") ? Landing::kEager : !strcmp(text, "random") ? Landing::kRandom : Landing::kLazy;
  }
  read_schedule("EMU_SCHED", s.schedule, s.seed);
  read_schedule("EMU_BLOCKS", s.block_schedule, s.block_seed);
  if (const char* text = getenv("EMU_CHECK")) {
    s.check_memory = strstr(text, "mem");
    s.check_races = strstr(text, "race");
    s.check_initialised = strstr(text, "init");
  }
  return s;
}

}  // namespace

const Settings loaded_settings = from_environment();

}  // namespace emu
