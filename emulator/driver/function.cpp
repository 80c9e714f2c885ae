// What can be asked of and set on a kernel (driver API, "Execution Control").
#include <algorithm>

#include "module.h"

namespace emu::driver {

uint32_t static_shared_bytes(const EmuKernel& kernel) {
  return (kernel.shared_bytes + kSharedGranularity - 1) / kSharedGranularity * kSharedGranularity;
}

Function::Function(const EmuKernel& table)
    : kernel(&table),
      max_dynamic_shared(kSharedPerBlock - std::min(static_shared_bytes(table), kSharedPerBlock)),
      required_cluster{table.cluster[0], table.cluster[1], table.cluster[2]} {}

int function_attribute(const Function& function, CUfunction_attribute attribute) {
  const EmuKernel& kernel = *function.kernel;
  const auto module = function.module.lock();
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return static_cast<int>(kernel.max_threads ? kernel.max_threads : kMaxThreads);
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: return static_cast<int>(static_shared_bytes(kernel));
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: {
      uint64_t bytes = 0;
      const EmuModule& table = *module->image->module;
      for (uint32_t i = 0; i < table.num_globals; ++i) bytes += table.globals[i].constant ? table.globals[i].bytes : 0;
      return static_cast<int>(bytes);
    }
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: return 0;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: return static_cast<int>(kRegistersPerThread);
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: return 90;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: return 0;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: return static_cast<int>(function.max_dynamic_shared);
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return function.carveout;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: return 0;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: return static_cast<int>(function.required_cluster[0]);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: return static_cast<int>(function.required_cluster[1]);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: return static_cast<int>(function.required_cluster[2]);
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: return function.non_portable_cluster;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: return function.scheduling_policy;
    default: refuse(CUDA_ERROR_INVALID_VALUE, "function attribute %d is not emulated", static_cast<int>(attribute));
  }
}

void set_function_attribute(Function& function, CUfunction_attribute attribute, int value) {
  const EmuKernel& kernel = *function.kernel;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || static_cast<uint64_t>(value) + static_shared_bytes(kernel) > kSharedPerBlockOptIn) {
        refuse(CUDA_ERROR_INVALID_VALUE, "%s: %d bytes of dynamic and %u of static shared memory; a block has %u", kernel.name,
               value, static_shared_bytes(kernel), kSharedPerBlockOptIn);
      }
      function.max_dynamic_shared = static_cast<uint32_t>(value);
      return;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      require(value >= -1 && value <= 100);
      function.carveout = value;
      return;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: function.non_portable_cluster = value != 0; return;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      require(value >= CU_CLUSTER_SCHEDULING_POLICY_DEFAULT && value <= CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING);
      function.scheduling_policy = value;
      return;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      // Only where the kernel was compiled without a size; all three or none.
      if (kernel.cluster[0]) refuse(CUDA_ERROR_NOT_PERMITTED, "%s was compiled with a cluster size", kernel.name);
      require(value >= 0);
      function.required_cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] = static_cast<uint32_t>(value);
      return;
    default: refuse(CUDA_ERROR_INVALID_VALUE, "function attribute %d cannot be set", static_cast<int>(attribute));
  }
}

void param_info(const EmuKernel& kernel, size_t index, size_t* offset, size_t* bytes) {
  require(offset && index < kernel.num_params);
  *offset = kernel.params[index].offset;
  put(bytes, kernel.params[index].bytes);
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  return entry([&] {
    require(value);
    *value = function_attribute(*function_of(function), attribute);
  });
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return entry([&] { set_function_attribute(*function_of(function), attribute, value); });
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
  return entry([&] { function_of(function); });
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig) {
  return entry([&] { function_of(function); });
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
  return entry([&] {
    require(module);
    *module = function_of(function)->module.lock()->handle;
  });
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  return entry([&] {
    require(name);
    *name = function_of(function)->kernel->name;
  });
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  return entry([&] { param_info(*function_of(function)->kernel, index, offset, bytes); });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* loaded, CUfunction function) {
  return entry([&] {
    require(loaded);
    function_of(function);
    *loaded = CU_FUNCTION_LOADING_STATE_LOADED;
  });
}

CUresult cuFuncLoad(CUfunction function) {
  return entry([&] { function_of(function); });
}
