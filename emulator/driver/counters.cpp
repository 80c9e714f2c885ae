// Counts of what lives, for tests that look for leaks.
//
// emu_counter(name), with ":N" behind the name for one device and without for all:
//   allocations    live device allocations (not globals of modules)     bytes       device memory in use
//   contexts       live contexts, primary ones among them               streams     that the program made
//   events         modules                                              launches    kernels that were started, ever
// and for the process as a whole: host_allocations (page-locked ranges), images, graphs, graph_executables, pools, libraries.
// An unknown name is UINT64_MAX, and says so on stderr.
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "graph.h"
#include "memory.h"
#include "module.h"
#include "pool.h"
#include "state.h"
#include "stream.h"

namespace emu::driver {
namespace {

template <class Registry>
uint64_t of_device(const Registry& registry, const Device& device) {
  return registry.select([&](const auto& object) { return object.context->device == &device; }).size();
}

template <class Registry>
uint64_t all_of(const Registry& registry) {
  return registry.select([](const auto&) { return true; }).size();
}

struct DeviceCounter {
  const char* name;
  uint64_t (*count)(const Device&);
};

const DeviceCounter kDeviceCounters[] = {
    {"allocations", [](const Device& device) -> uint64_t { return count_allocations(device); }},
    {"bytes", [](const Device& device) { return device.used_bytes; }},
    {"launches", [](const Device& device) { return device.launches; }},
    {"contexts",
     [](const Device& device) -> uint64_t {
       return state().contexts.select([&](const Context& context) { return context.device == &device; }).size();
     }},
    {"streams",
     [](const Device& device) -> uint64_t {
       return state().streams.select([&](const Stream& s) { return !s.implicit && s.context->device == &device; }).size();
     }},
    {"events", [](const Device& device) { return of_device(state().events, device); }},
    {"modules", [](const Device& device) { return of_device(state().modules, device); }},
};

struct ProcessCounter {
  const char* name;
  uint64_t (*count)();
};

const ProcessCounter kProcessCounters[] = {
    {"host_allocations", []() -> uint64_t { return host_ranges(); }},
    {"images", []() -> uint64_t { return live_images(); }},
    {"graphs", [] { return all_of(state().graphs); }},
    {"graph_executables", [] { return all_of(state().executables); }},
    {"libraries", [] { return all_of(state().libraries); }},
    {"pools", [] { return all_of(state().pools); }},
};

uint64_t count(const std::string& name, const std::string& device) {
  for (const DeviceCounter& counter : kDeviceCounters) {
    if (name != counter.name) continue;
    uint64_t sum = 0;
    for (const auto& each : state().devices) {
      if (device.empty() || device == std::to_string(each->index)) sum += counter.count(*each);
    }
    return sum;
  }
  for (const ProcessCounter& counter : kProcessCounters) {
    if (device.empty() && name == counter.name) return counter.count();
  }
  complain("there is no counter " + name);
  return UINT64_MAX;
}

}  // namespace
}  // namespace emu::driver

extern "C" uint64_t emu_counter(const char* name) {
  using namespace emu::driver;
  const std::string text = name ? name : "";
  const size_t colon = text.find(':');
  Lock lock(state().mutex);
  return count(text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1));
}
