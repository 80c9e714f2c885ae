// Modules: an image in a context (driver API, "Module Management").
#include "module.h"

#include <algorithm>
#include <cstring>

#include "capture.h"
#include "ptx.h"
#include "runtime/memory.h"
#include "stream.h"

namespace emu::driver {
namespace {

void initialise(char* memory, const EmuGlobal& global, const std::vector<char*>& globals) {
  if (global.initial) {
    memcpy(memory, global.initial, global.bytes);
  } else {
    memset(memory, 0, global.bytes);
  }
  for (uint32_t i = 0; i < global.num_relocations; ++i) {
    const EmuRelocation& relocation = global.relocations[i];
    const char* address = globals[relocation.target] + relocation.addend;
    memcpy(memory + relocation.offset, &address, sizeof address);
  }
  define_device_bytes(memory, global.bytes);
}

void free_globals(Module& module) {
  for (size_t i = 0; i < module.globals.size(); ++i) {
    device_free(module.globals[i]);
    module.context->device->used_bytes -= module.image->module->globals[i].bytes;
  }
  module.globals.clear();
}

}  // namespace

std::shared_ptr<Module> load_module(const std::shared_ptr<Context>& context, std::shared_ptr<Image> image) {
  auto module = std::make_shared<Module>();
  module->context = context;
  module->image = std::move(image);
  const EmuModule& table = *module->image->module;
  for (uint32_t i = 0; i < table.num_globals; ++i) {
    void* memory = device_malloc(context->device->index, std::max<uint64_t>(table.globals[i].bytes, 1));
    if (!memory) {
      free_globals(*module);
      refuse(CUDA_ERROR_OUT_OF_MEMORY);
    }
    module->globals.push_back(static_cast<char*>(memory));
    context->device->used_bytes += table.globals[i].bytes;
  }
  for (uint32_t i = 0; i < table.num_globals; ++i) initialise(module->globals[i], table.globals[i], module->globals);
  state().modules.add(module);
  return module;
}

void unload_module(Module& module) {
  for (const auto& [name, function] : module.functions) state().functions.remove(function->handle);
  module.functions.clear();
  module.loaded = false;
  free_globals(module);
  state().modules.remove(module.handle);
}

std::shared_ptr<Function> get_function(const std::shared_ptr<Module>& module, const std::string& name) {
  auto& function = module->functions[name];
  if (function) return function;
  const EmuModule& table = *module->image->module;
  for (uint32_t i = 0; i < table.num_kernels; ++i) {
    if (name != table.kernels[i].name) continue;
    function = std::make_shared<Function>(table.kernels[i]);
    function->module = module;
    state().functions.add(function);
    return function;
  }
  module->functions.erase(name);
  refuse(CUDA_ERROR_NOT_FOUND);
}

void get_global(const Module& module, const char* name, CUdeviceptr* address, size_t* bytes) {
  require(name && (address || bytes));
  const EmuModule& table = *module.image->module;
  for (uint32_t i = 0; i < table.num_globals; ++i) {
    if (strcmp(table.globals[i].name, name) != 0) continue;
    put(address, reinterpret_cast<CUdeviceptr>(module.globals[i]));
    put(bytes, table.globals[i].bytes);
    return;
  }
  refuse(CUDA_ERROR_NOT_FOUND);
}

namespace {

CUresult load(CUmodule* module, const void* image, std::string* log = nullptr) {
  return entry([&](Lock& lock) {
    require(module && image);
    const auto context = working_context();
    *module = load_module(context, load_image(lock, image, log))->handle;
  });
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, CUjit_option* options, void** values) {
  JitLog log(count, options, values);
  return load(module, image, &log.text);
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load(module, image);
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return entry([&](Lock& lock) {
    require(module);
    const auto context = working_context();
    *module = load_module(context, load_image(lock, read_file(path).data()))->handle;
  });
}

CUresult cuModuleUnload(CUmodule handle) {
  return entry([&](Lock& lock) {
    const auto module = state().modules.get(handle);
    module->context->check();
    refuse_unsafe_call();
    wait_for_context(lock, *module->context);
    if (module->loaded) unload_module(*module);
  });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return entry([&] {
    require(mode);
    *mode = CU_MODULE_EAGER_LOADING;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return entry([&] {
    require(function && name);
    working_context();
    *function = get_function(state().modules.get(module), name)->handle;
  });
}

CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
  return entry([&] {
    require(count);
    *count = state().modules.get(module)->image->module->num_kernels;
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned capacity, CUmodule handle) {
  return entry([&] {
    require(functions && capacity);
    const auto module = state().modules.get(handle);
    const EmuModule& table = *module->image->module;
    for (unsigned i = 0; i < std::min(capacity, table.num_kernels); ++i) {
      functions[i] = get_function(module, table.kernels[i].name)->handle;
    }
  });
}

CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  return entry([&] {
    working_context();
    get_global(*state().modules.get(module), name, address, bytes);
  });
}
