// Contexts: making, destroying and the calling thread's stack of them (driver API, "Context Management" and "Primary Context
// Management").
#include "capture.h"
#include "memory.h"
#include "module.h"
#include "state.h"
#include "stream.h"

namespace emu::driver {
namespace {

// The calling thread's contexts, the current one last. What Python frees very late may come after the thread's own destructors.
struct ContextStack {
  std::vector<std::shared_ptr<Context>>* contexts = nullptr;

  ~ContextStack() {
    delete contexts;
    contexts = nullptr;
  }
};
thread_local ContextStack stack_of_thread;

std::vector<std::shared_ptr<Context>>& stack() {
  if (!stack_of_thread.contexts) stack_of_thread.contexts = new std::vector<std::shared_ptr<Context>>;
  return *stack_of_thread.contexts;
}

constexpr unsigned kKnownFlags = CU_CTX_FLAGS_MASK;

std::shared_ptr<Context> make_context(Device& device, unsigned flags, bool primary) {
  if (device.gone()) refuse(CUDA_ERROR_DEVICE_UNAVAILABLE);
  require((flags & ~kKnownFlags) == 0);
  auto context = std::make_shared<Context>();
  context->device = &device;
  context->id = state().next_id++;
  context->flags = flags;
  context->primary = primary;
  context->limits = {{CU_LIMIT_STACK_SIZE, 1024},
                     {CU_LIMIT_PRINTF_FIFO_SIZE, 8 << 20},
                     {CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20},
                     {CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 128},
                     {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0}};
  context->null_stream = make_stream(context, CU_STREAM_DEFAULT, 0, true);
  state().contexts.add(context);
  return context;
}

void create(CUcontext* handle, unsigned flags, CUdevice device) {
  require(handle);
  stack().push_back(make_context(state().device(device), flags, false));
  *handle = stack().back()->handle;
}

void pop_if_current(const Context& context) {
  if (!stack().empty() && stack().back().get() == &context) stack().pop_back();
}

// What a call that gives up a broken context returns.
void report_gone(Device& device) {
  if (device.gone()) refuse(CUDA_ERROR_UNKNOWN);
}

void release_primary(Lock& lock, Device& device) {
  const auto context = device.primary;
  device.primary.reset();
  device.primary_users = 0;
  destroy_context(lock, context);
  report_gone(device);
}

}  // namespace

std::shared_ptr<Context> current_context() {
  if (stack().empty() || !stack().back()) refuse(CUDA_ERROR_INVALID_CONTEXT);
  if (!stack().back()->alive) refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return stack().back();
}

std::shared_ptr<Context> working_context() {
  auto context = current_context();
  context->check();
  return context;
}

// Its running kernel ends by itself, work that waits behind it is dropped, and an injected hang ends.
void destroy_context(Lock& lock, const std::shared_ptr<Context>& context) {
  for (const auto& stream : streams_of(*context)) abandon_capture(*stream);
  context->alive = false;
  state().contexts.remove(context->handle);
  state().progress.notify_all();
  wait_for_context(lock, *context);
  for (const auto& stream : streams_of(*context)) close_stream(*stream);
  for (const auto& event : state().events.select([&](const Event& e) { return e.context == context; })) {
    state().events.remove(event->handle);
  }
  for (const auto& module : state().modules.select([&](const Module& m) { return m.context == context; })) unload_module(*module);
  forget_context(*context);
  release_all(*context);
  release_host(*context);
  context->leaving.clear();
  context->null_stream.reset();  // which keeps the context
  context->thread_streams.clear();
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuCtxCreate(CUcontext* handle, CUctxCreateParams* params, unsigned flags, CUdevice device) {
  return entry([&] {
    if (params && (params->numExecAffinityParams || params->cigParams)) {
      refuse(CUDA_ERROR_NOT_SUPPORTED, "contexts with an execution affinity or for graphics are not emulated");
    }
    create(handle, flags, device);
  });
}

extern "C" CUresult cuCtxCreate_v3(CUcontext* handle, CUexecAffinityParam*, int num_params, unsigned flags, CUdevice device) {
  return entry([&] {
    if (num_params) refuse(CUDA_ERROR_NOT_SUPPORTED, "contexts with an execution affinity are not emulated");
    create(handle, flags, device);
  });
}

extern "C" CUresult cuCtxCreate_v2(CUcontext* handle, unsigned flags, CUdevice device) {
  return entry([&] { create(handle, flags, device); });
}

CUresult cuCtxDestroy(CUcontext handle) {
  return entry([&](Lock& lock) {
    const auto context = state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT);
    if (context->primary) refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxDestroy of a primary context");
    pop_if_current(*context);
    destroy_context(lock, context);
    report_gone(*context->device);
  });
}

CUresult cuCtxAttach(CUcontext* handle, unsigned flags) {
  return entry([&] {
    require(handle && flags == 0);
    const auto context = current_context();
    ++context->users;
    *handle = context->handle;
  });
}

CUresult cuCtxDetach(CUcontext handle) {
  return entry([&](Lock& lock) {
    const auto context = state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT);
    if (--context->users > 0) return;
    pop_if_current(*context);
    destroy_context(lock, context);
    report_gone(*context->device);
  });
}

// ---- the stack ----------------------------------------------------------------------------------------------------------------

CUresult cuCtxPushCurrent(CUcontext handle) {
  return entry([&] { stack().push_back(state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT)); });
}

CUresult cuCtxPopCurrent(CUcontext* handle) {
  return entry([&] {
    require(!stack().empty(), CUDA_ERROR_INVALID_CONTEXT);
    put(handle, stack().back() ? stack().back()->handle : nullptr);
    stack().pop_back();
  });
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  return entry([&] {
    const auto context = handle ? state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT) : nullptr;
    if (!stack().empty()) stack().pop_back();
    if (context) stack().push_back(context);
  });
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  return entry([&] {
    require(handle);
    *handle = !stack().empty() && stack().back() ? stack().back()->handle : nullptr;
  });
}

// ---- facts about a context ------------------------------------------------------------------------------------------------------

CUresult cuCtxGetDevice(CUdevice* device) {
  return entry([&] {
    require(device);
    *device = current_context()->device->index;
  });
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  return entry([&] {
    require(device);
    const auto context = handle ? state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT) : current_context();
    *device = context->device->index;
  });
}

CUresult cuCtxGetFlags(unsigned* flags) {
  return entry([&] {
    require(flags);
    *flags = current_context()->flags;
  });
}

CUresult cuCtxSetFlags(unsigned flags) {
  return entry([&] {
    require((flags & ~kKnownFlags) == 0);
    working_context()->flags = flags;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return entry([&] {
    require(id);
    *id = (handle ? state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT) : current_context())->id;
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  return entry([&] {
    require(version);
    *version = (handle ? state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT) : current_context())->api_version;
  });
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return entry([&] {
    require(value);
    const auto context = working_context();
    const auto found = context->limits.find(limit);
    if (found == context->limits.end()) refuse(CUDA_ERROR_UNSUPPORTED_LIMIT);
    *value = found->second;
  });
}

// Kept, without an effect: stacks, heaps and buffers of the emulator have other bounds.
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return entry([&] {
    const auto context = working_context();
    if (!context->limits.count(limit)) refuse(CUDA_ERROR_UNSUPPORTED_LIMIT);
    context->limits[limit] = value;
  });
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  return entry([&] {
    require(config);
    *config = working_context()->cache_config;
  });
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  return entry([&] { working_context()->cache_config = config; });
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  return entry([&] {
    require(config);
    working_context();
    *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  });
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig) {
  return entry([&] { working_context(); });
}

CUresult cuCtxResetPersistingL2Cache() {
  return entry([&] { working_context(); });
}

namespace {

void synchronize(Lock& lock, const std::shared_ptr<Context>& context) {
  refuse_if_captured(*context);
  refuse_unsafe_call();
  wait_for_context(lock, *context);
  context->check();
}

}  // namespace

CUresult cuCtxSynchronize() {
  return entry([&](Lock& lock) { synchronize(lock, working_context()); });
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  return entry([&](Lock& lock) {
    const auto context = handle ? state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT) : current_context();
    context->check();
    synchronize(lock, context);
  });
}

// ---- primary contexts -----------------------------------------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice index) {
  return entry([&] {
    require(handle);
    Device& device = state().device(index);
    if (device.gone()) refuse(CUDA_ERROR_DEVICE_UNAVAILABLE);
    if (!device.primary) device.primary = make_context(device, device.primary_flags, true);
    ++device.primary_users;
    *handle = device.primary->handle;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice index) {
  return entry([&](Lock& lock) {
    Device& device = state().device(index);
    require(device.primary != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    if (--device.primary_users == 0) release_primary(lock, device);
  });
}

// The next retain makes a new context, with a new handle.
CUresult cuDevicePrimaryCtxReset(CUdevice index) {
  return entry([&](Lock& lock) {
    Device& device = state().device(index);
    if (device.primary) release_primary(lock, device);
  });
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice index, unsigned flags) {
  return entry([&] {
    require((flags & ~kKnownFlags) == 0);
    Device& device = state().device(index);
    device.primary_flags = flags;
    if (device.primary) device.primary->flags = flags;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice index, unsigned* flags, int* active) {
  return entry([&] {
    Device& device = state().device(index);
    put(flags, device.primary_flags);
    put(active, device.primary != nullptr);
  });
}
