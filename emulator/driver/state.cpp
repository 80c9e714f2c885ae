// The process's state, and waiting for streams: see state.h.
#include "state.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>

#include "pool.h"
#include "runtime/settings.h"

namespace emu::driver {

thread_local bool in_host_function = false;

namespace {

std::atomic<bool> forked = false, exiting = false;

constexpr auto kPoll = std::chrono::milliseconds(20);  // while a fault holds up a stream

// Python unloads its modules, and so frees device memory, before the C library hears of the end.
bool python_is_finalizing() {
  using Query = int (*)();
  static const Query query = [] {
    void* found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");  // 3.13
    return reinterpret_cast<Query>(found ? found : dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
  }();
  return query && query();
}

}  // namespace

State& state() {
  static State* const the_state = new State;
  return *the_state;
}

// Small enough for every integer type that a binding keeps handles in, and never the address of anything.
uintptr_t next_handle() {
  static std::atomic<uintptr_t> next = 0x10000;
  return next += 16;
}

Device& State::device(CUdevice index) {
  if (index < 0 || static_cast<size_t>(index) >= devices.size()) refuse(CUDA_ERROR_INVALID_DEVICE);
  return *devices[static_cast<size_t>(index)];
}

void Context::check() {
  if (device->gone()) refuse(CUDA_ERROR_UNKNOWN);
  if (error) refuse(error);
  if (!alive) refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

void Context::fail(CUresult code, const std::string& message) {
  if (error) return;
  error = code;
  complain(message);
}

bool process_is_ending() {
  return exiting || python_is_finalizing();
}

void check_callable(bool needs_initialisation) {
  if (in_host_function) refuse(CUDA_ERROR_NOT_PERMITTED, "a host function of a stream called the driver");
  if (forked) refuse(CUDA_ERROR_NOT_INITIALIZED, "the driver was initialised before fork(); a child cannot use it");
  if (needs_initialisation && !state().initialised) refuse(CUDA_ERROR_NOT_INITIALIZED);
}

bool wait_for_progress(Lock& lock) {
  if (state().hanging == 0) {
    state().progress.wait(lock);
    return false;
  }
  state().progress.wait_for(lock, kPoll);
  return state().hanging > 0 && process_is_ending();
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuInit(unsigned flags) {
  return entry(
      [&] {
        require(flags == 0);
        State& s = state();
        if (s.initialised) return;
        const int count = emu::settings().devices;
        if (count <= 0) refuse(CUDA_ERROR_NO_DEVICE);
        for (int i = 0; i < count; ++i) {
          auto device = std::make_unique<Device>();
          device->index = i;
          device->default_pool = device->pool = make_pool(*device);
          s.devices.push_back(std::move(device));
        }
        try {
          if (const char* plan = getenv("EMU_FAULTS")) install_faults(plan);
        } catch (const Refusal&) {
          s.devices.clear();
          throw;
        }
        atexit([] { exiting = true; });
        pthread_atfork(nullptr, nullptr, [] { forked = true; });
        s.initialised = true;
      },
      false);
}

CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
