// Images, modules, functions and libraries.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "abi/emulator.h"
#include "limits.h"
#include "state.h"

namespace emu::driver {

// A translated module in this process: one for each content, however often it is loaded.
struct Image {
  void* library = nullptr;
  const EmuModule* module = nullptr;

  ~Image();
};

// What the launches of CUDA 3 keep in a function: see legacy_launch.cpp.
struct LegacyLaunch {
  EmuDim block{1, 1, 1};
  uint32_t dynamic_shared = 0;
  std::vector<char> params;
};

struct Function {
  CUfunction handle = nullptr;
  std::weak_ptr<Module> module;
  const EmuKernel* kernel = nullptr;
  uint32_t max_dynamic_shared;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  bool non_portable_cluster = false;
  int carveout = -1, scheduling_policy = 0;
  uint32_t required_cluster[3];  // of the kernel, or set by attributes
  LegacyLaunch legacy;

  explicit Function(const EmuKernel& kernel);
};

// An image in a context, with memory for its globals.
struct Module {
  CUmodule handle = nullptr;
  std::shared_ptr<Context> context;
  std::shared_ptr<Image> image;
  std::vector<char*> globals;
  std::map<std::string, std::shared_ptr<Function>> functions;  // those that were asked for
  bool loaded = true;
};

// An image that is loaded into contexts as they use it.
struct Library {
  CUlibrary handle = nullptr;
  std::shared_ptr<Image> image;
  std::map<Context*, std::shared_ptr<Module>> modules;
  std::map<std::string, CUkernel> kernels;
};

// ---- image.cpp ------------------------------------------------------------------------------------------------------------------
// A cubin or PTX; in `log` what was wrong with PTX. The lock is not held while that is translated.
std::shared_ptr<Image> load_image(Lock& lock, const void* data, std::string* log = nullptr);
std::string read_file(const char* path);
size_t live_images();

// ---- module.cpp -----------------------------------------------------------------------------------------------------------------
std::shared_ptr<Module> load_module(const std::shared_ptr<Context>& context, std::shared_ptr<Image> image);
void unload_module(Module& module);
std::shared_ptr<Function> get_function(const std::shared_ptr<Module>& module, const std::string& name);
void get_global(const Module& module, const char* name, CUdeviceptr* address, size_t* bytes);

// ---- library.cpp ----------------------------------------------------------------------------------------------------------------
// A CUfunction; or a CUkernel in its place, which stands for its function in the calling thread's context.
std::shared_ptr<Function> function_of(CUfunction handle);
void forget_context(const Context& context);  // libraries drop their modules in it

// ---- function.cpp ---------------------------------------------------------------------------------------------------------------
uint32_t static_shared_bytes(const EmuKernel& kernel);  // as the driver tells and counts them: rounded up
int function_attribute(const Function& function, CUfunction_attribute attribute);
void set_function_attribute(Function& function, CUfunction_attribute attribute, int value);
void param_info(const EmuKernel& kernel, size_t index, size_t* offset, size_t* bytes);

// ---- occupancy.cpp --------------------------------------------------------------------------------------------------------------
uint32_t blocks_per_multiprocessor(const Function& function, uint32_t threads, size_t dynamic_shared);

}  // namespace emu::driver
