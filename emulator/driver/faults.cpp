// Reading plans of faults: see faults.h.
#include "faults.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "state.h"

namespace emu::driver {
namespace {

// "alloc=12" -> {"alloc", "12"}; "oom" -> {"oom", ""}.
struct Word {
  std::string name, value;
};

[[noreturn]] void malformed(const std::string& entry, const std::string& why) {
  refuse(CUDA_ERROR_INVALID_VALUE, "EMU_FAULTS: \"%s\": %s", entry.c_str(), why.c_str());
}

uint64_t to_number(const std::string& entry, const Word& word) {
  char* end;
  const uint64_t number = strtoull(word.value.c_str(), &end, 10);
  if (word.value.empty() || word.value[0] < '0' || word.value[0] > '9' || *end) malformed(entry, word.name + " needs a number");
  return number;
}

uint64_t to_count(const std::string& entry, const Word& word) {
  const uint64_t number = to_number(entry, word);
  if (number == 0) malformed(entry, word.name + " counts from 1");
  return number;
}

double to_positive(const std::string& entry, const Word& word, std::string* unit = nullptr) {
  char* end;
  const double number = strtod(word.value.c_str(), &end);
  if (end == word.value.c_str() || !(number > 0)) malformed(entry, word.name + " needs a number above zero");
  if (unit) {
    *unit = end;
  } else if (*end) {
    malformed(entry, word.name + " needs a number");
  }
  return number;
}

std::chrono::nanoseconds to_duration(const std::string& entry, const Word& word) {
  std::string unit;
  const double number = to_positive(entry, word, &unit);
  const double scale = unit == "s" ? 1e9 : unit == "ms" ? 1e6 : unit == "us" ? 1e3 : 0;
  if (scale == 0) malformed(entry, word.name + " needs a time such as 2.5s, 20ms or 7us");
  return std::chrono::nanoseconds(static_cast<int64_t>(number * scale));
}

// Takes a word from the list when it is there.
std::optional<Word> take(std::vector<Word>& words, const std::string& name) {
  for (auto i = words.begin(); i != words.end(); ++i) {
    if (i->name != name) continue;
    Word word = *i;
    words.erase(i);
    return word;
  }
  return std::nullopt;
}

std::vector<Word> split(const std::string& entry) {
  std::istringstream in(entry);
  std::vector<Word> words;
  for (std::string text; in >> text;) {
    const size_t equals = text.find('=');
    words.push_back(equals == std::string::npos ? Word{text, ""} : Word{text.substr(0, equals), text.substr(equals + 1)});
  }
  return words;
}

// The device that an entry is about.
size_t take_device(const std::string& entry, std::vector<Word>& words) {
  const std::string prefix = "cuda:";
  if (words.empty() || !words[0].name.starts_with(prefix)) malformed(entry, "an entry begins with a device: cuda:N");
  const uint64_t index = to_number(entry, {"cuda:", words[0].name.substr(prefix.size())});
  if (index >= state().devices.size()) malformed(entry, "there is no such device (EMU_DEVICES)");
  words.erase(words.begin());
  return index;
}

// Adds an entry "WHEN WHAT"; false: there is no such fault in it.
bool read_fault(const std::string& entry, std::vector<Word>& words, DeviceFaults& faults) {
  const auto alloc = take(words, "alloc"), enqueue = take(words, "enqueue"), launch = take(words, "launch"), after = take(words, "after");
  const auto oom = take(words, "oom"), oom_from_then_on = take(words, "oom+");
  const auto sticky = take(words, "sticky"), hang = take(words, "hang"), disappear = take(words, "disappear");
  const int conditions = !!alloc + !!enqueue + !!launch + !!after;
  const int effects = !!oom + !!oom_from_then_on + !!sticky + !!hang + !!disappear;
  if (conditions + effects == 0) return false;
  if (conditions > 1) malformed(entry, "one of alloc, enqueue, launch and after");
  if (effects != 1) malformed(entry, "one of oom, oom+, sticky, hang and disappear");
  if (oom || oom_from_then_on) {
    if (!alloc && !enqueue) malformed(entry, "oom needs alloc=K or enqueue=K");
    auto& calls = alloc ? faults.allocations : faults.enqueued;
    calls.push_back({to_count(entry, alloc ? *alloc : *enqueue), oom_from_then_on.has_value()});
    return true;
  }
  if (alloc || enqueue) malformed(entry, "alloc and enqueue go with oom or oom+");
  if (disappear && !launch) {
    faults.disappears_at = Clock::now() + (after ? to_duration(entry, *after) : std::chrono::nanoseconds(0));
    return true;
  }
  if (!launch) malformed(entry, "sticky and hang need launch=K");
  LaunchFault fault{disappear ? LaunchFault::Kind::kDisappear
                    : hang    ? LaunchFault::Kind::kHang
                              : LaunchFault::Kind::kSticky,
                    to_count(entry, *launch)};
  if (sticky && !sticky->value.empty()) fault.error = static_cast<CUresult>(to_count(entry, *sticky));
  if (hang && !hang->value.empty()) fault.duration = to_duration(entry, *hang);
  faults.launches.push_back(fault);
  return true;
}

void read_entry(const std::string& entry, std::vector<DeviceFaults>& plan) {
  std::vector<Word> words = split(entry);
  DeviceFaults& faults = plan[take_device(entry, words)];
  bool understood = read_fault(entry, words, faults);
  if (const auto speed = take(words, "speed")) {
    faults.speed = to_positive(entry, *speed);
    understood = true;
  }
  if (const auto cost = take(words, "launch_us")) {
    faults.launch_cost = std::chrono::microseconds(to_number(entry, *cost));
    understood = true;
  }
  if (!words.empty()) malformed(entry, "what is \"" + words[0].name + "\"?");
  if (!understood) malformed(entry, "nothing happens");
}

bool any_strikes(const std::vector<MemoryFault>& faults, uint64_t number) {
  return std::any_of(faults.begin(), faults.end(), [&](const MemoryFault& fault) {
    return fault.from_then_on ? number >= fault.number : number == fault.number;
  });
}

}  // namespace

const LaunchFault* DeviceFaults::launch_fault(uint64_t number) const {
  for (const LaunchFault& fault : launches) {
    if (first_launch + fault.number == number) return &fault;
  }
  return nullptr;
}

bool DeviceFaults::allocation_fails(uint64_t number) const {
  return any_strikes(allocations, number - first_allocation);
}

bool DeviceFaults::enqueue_fails(uint64_t number) const {
  return any_strikes(enqueued, number - first_enqueued);
}

void meet_enqueue_fault(Device& device) {
  if (device.faults.enqueue_fails(++device.enqueued)) refuse(CUDA_ERROR_OUT_OF_MEMORY);
}

void install_faults(const std::string& plan) {
  auto& devices = state().devices;
  std::vector<DeviceFaults> faults(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    faults[i].gone = devices[i]->gone();
    faults[i].first_launch = devices[i]->launches;
    faults[i].first_allocation = devices[i]->allocations;
    faults[i].first_enqueued = devices[i]->enqueued;
  }
  std::istringstream in(plan);
  for (std::string entry; std::getline(in, entry, ',');) {
    const size_t first = entry.find_first_not_of(" \t\n");
    if (first == std::string::npos) {
      if (plan.find_first_not_of(" \t\n") == std::string::npos) break;
      malformed(plan, "an entry is empty");
    }
    read_entry(entry.substr(first), faults);
  }
  for (size_t i = 0; i < devices.size(); ++i) devices[i]->faults = std::move(faults[i]);
  ++state().fault_plans;
  state().progress.notify_all();
}

bool Device::gone() {
  if (!faults.gone && faults.disappears_at && Clock::now() >= *faults.disappears_at) {
    faults.gone = true;
    state().progress.notify_all();
  }
  return faults.gone;
}

}  // namespace emu::driver

// Replaces the plan; a CUresult.
extern "C" int emu_faults(const char* plan) {
  using namespace emu::driver;
  return entry([&] { install_faults(plan ? plan : ""); });
}
