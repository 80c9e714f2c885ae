// Libraries and their kernels: modules that follow the calling thread's context (driver API, "Library Management").
#include <algorithm>
#include <functional>

#include "capture.h"
#include "module.h"
#include "ptx.h"
#include "stream.h"

namespace emu::driver {
namespace {

struct Kernel {
  CUkernel handle = nullptr;
  std::shared_ptr<Library> library;
  std::string name;
};

Handles<CUkernel, Kernel>& kernels() {
  static auto* const live = new Handles<CUkernel, Kernel>;
  return *live;
}

std::shared_ptr<Module> module_of(Library& library) {
  const auto context = working_context();
  auto& module = library.modules[context.get()];
  if (!module) module = load_module(context, library.image);
  return module;
}

std::shared_ptr<Function> function_of(const Kernel& kernel) {
  return get_function(module_of(*kernel.library), kernel.name);
}

const EmuKernel& table_of(const Kernel& kernel) {
  const EmuModule& table = *kernel.library->image->module;
  return *std::find_if(table.kernels, table.kernels + table.num_kernels, [&](const EmuKernel& k) { return kernel.name == k.name; });
}

CUkernel get_kernel(const std::shared_ptr<Library>& library, const std::string& name) {
  CUkernel& handle = library->kernels[name];
  if (handle) return handle;
  const EmuModule& table = *library->image->module;
  const bool found =
      std::any_of(table.kernels, table.kernels + table.num_kernels, [&](const EmuKernel& k) { return name == k.name; });
  if (!found) {
    library->kernels.erase(name);
    refuse(CUDA_ERROR_NOT_FOUND);
  }
  auto kernel = std::make_shared<Kernel>();
  kernel->library = library;
  kernel->name = name;
  return handle = kernels().add(kernel);
}

void require_current_device(CUdevice device) {
  if (working_context()->device->index != state().device(device).index) {
    refuse(CUDA_ERROR_NOT_SUPPORTED, "attributes of a CUkernel on a device that is not the current context's are not emulated");
  }
}

CUresult load(CUlibrary* library, const std::function<std::shared_ptr<Image>(Lock&)>& image) {
  return entry([&](Lock& lock) {
    require(library);
    auto made = std::make_shared<Library>();
    made->image = image(lock);
    *library = state().libraries.add(made);
  });
}

}  // namespace

std::shared_ptr<Function> function_of(CUfunction handle) {
  if (auto function = state().functions.find(handle)) return function;
  return function_of(*kernels().get(reinterpret_cast<CUkernel>(handle)));
}

void forget_context(const Context& context) {
  for (const auto& library : state().libraries.select([](const Library&) { return true; })) {
    library->modules.erase(const_cast<Context*>(&context));
  }
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values, unsigned count,
                           CUlibraryOption*, void**, unsigned) {
  JitLog log(count, options, values);
  return load(library, [&](Lock& lock) { return load_image(lock, code, &log.text); });
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                               unsigned) {
  return load(library, [&](Lock& lock) { return load_image(lock, read_file(path).data()); });
}

CUresult cuLibraryUnload(CUlibrary handle) {
  return entry([&](Lock& lock) {
    const auto library = state().libraries.get(handle);
    refuse_unsafe_call();
    const auto modules = library->modules;
    for (const auto& [context, module] : modules) wait_for_context(lock, *context);
    for (const auto& [context, module] : modules) {
      if (module->loaded) unload_module(*module);
    }
    for (const auto& [name, kernel] : library->kernels) kernels().remove(kernel);
    state().libraries.remove(handle);
  });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return entry([&] {
    require(kernel && name);
    *kernel = get_kernel(state().libraries.get(library), name);
  });
}

CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  return entry([&] {
    require(count);
    *count = state().libraries.get(library)->image->module->num_kernels;
  });
}

CUresult cuLibraryEnumerateKernels(CUkernel* found, unsigned capacity, CUlibrary handle) {
  return entry([&] {
    require(found && capacity);
    const auto library = state().libraries.get(handle);
    const EmuModule& table = *library->image->module;
    for (unsigned i = 0; i < std::min(capacity, table.num_kernels); ++i) found[i] = get_kernel(library, table.kernels[i].name);
  });
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return entry([&] {
    require(module);
    *module = module_of(*state().libraries.get(library))->handle;
  });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return entry([&] { get_global(*module_of(*state().libraries.get(library)), name, address, bytes); });
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return entry([&] {
    require(function);
    *function = function_of(*kernels().get(kernel))->handle;
  });
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  return entry([&] {
    require(library);
    *library = kernels().get(kernel)->library->handle;
  });
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return entry([&] {
    require(name);
    *name = table_of(*kernels().get(kernel)).name;
  });
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  return entry([&] { param_info(table_of(*kernels().get(kernel)), index, offset, bytes); });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  return entry([&] {
    require(value);
    require_current_device(device);
    *value = function_attribute(*function_of(*kernels().get(kernel)), attribute);
  });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  return entry([&] {
    require_current_device(device);
    set_function_attribute(*function_of(*kernels().get(kernel)), attribute, value);
  });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice device) {
  return entry([&] {
    state().device(device);
    kernels().get(kernel);
  });
}
