// Launching kernels: parameters, attributes and entry points (driver API, "Execution Control").
#include "launch.h"

#include <cstring>

#include "module.h"
#include "stream.h"

namespace emu::driver {
namespace {

constexpr size_t kBufferSlack = 7;  // a packed buffer may end with padding

Params pack(const EmuKernel& kernel, void* const* params) {
  Params packed(kernel.param_bytes);
  for (uint32_t i = 0; i < kernel.num_params; ++i) {
    require(params[i]);
    memcpy(packed.data() + kernel.params[i].offset, params[i], kernel.params[i].bytes);
  }
  return packed;
}

Params unpack_buffer(const EmuKernel& kernel, void* const* extra) {
  const char* buffer = nullptr;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<const char*>(extra[1]);
    } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = *static_cast<const size_t*>(extra[1]);
    } else {
      refuse(CUDA_ERROR_INVALID_VALUE);
    }
  }
  require(buffer || bytes == 0);
  if (bytes < kernel.param_bytes || bytes > kernel.param_bytes + kBufferSlack) {
    refuse(CUDA_ERROR_INVALID_VALUE, "%s takes %u bytes of parameters, the launch brings %zu", kernel.name, kernel.param_bytes,
           bytes);
  }
  Params packed(kernel.param_bytes);
  if (kernel.param_bytes) memcpy(packed.data(), buffer, kernel.param_bytes);
  return packed;
}

std::vector<void*> pointers_into(const EmuKernel& kernel, const Params& params) {
  char* bytes = const_cast<Params&>(params).data();
  std::vector<void*> pointers;
  for (uint32_t i = 0; i < kernel.num_params; ++i) pointers.push_back(bytes + kernel.params[i].offset);
  return pointers;
}

}  // namespace

KernelWork::KernelWork(std::shared_ptr<Function> which, const LaunchShape& shape, Params packed)
    : function(std::move(which)),
      module(function->module.lock()),
      shape(shape),
      params(std::move(packed)),
      pointers(pointers_into(*function->kernel, params)) {}

std::shared_ptr<Context> KernelWork::context() const {
  return module->context;
}

std::shared_ptr<const KernelWork> make_kernel_work(const std::shared_ptr<Function>& function, const LaunchShape& shape,
                                                   void** params, void** extra) {
  const EmuKernel& kernel = *function->kernel;
  validate(*function, shape);
  require(!(params && extra));
  Params packed;
  if (extra) {
    packed = unpack_buffer(kernel, extra);
  } else if (kernel.num_params) {
    if (!params) refuse(CUDA_ERROR_INVALID_VALUE, "%s takes %u parameters, the launch brings none", kernel.name, kernel.num_params);
    packed = pack(kernel, params);
  }
  return std::make_shared<KernelWork>(function, shape, std::move(packed));
}

void launch(const std::shared_ptr<Function>& function, const LaunchShape& shape, CUstream handle, void** params, void** extra) {
  const auto context = working_context();
  const auto stream = stream_of(context, handle);
  const auto module = function->module.lock();
  if (!module || module->context != stream->context) {
    refuse(CUDA_ERROR_INVALID_HANDLE, "%s: the function and the stream are of different contexts", function->kernel->name);
  }
  auto work = make_kernel_work(function, shape, params, extra);
  meet_enqueue_fault(*context->device);
  submit(stream, std::move(work));
}

LaunchShape launch_shape(const CUlaunchConfig& config) {
  LaunchShape shape;
  shape.grid = {config.gridDimX, config.gridDimY, config.gridDimZ};
  shape.block = {config.blockDimX, config.blockDimY, config.blockDimZ};
  shape.dynamic_shared = config.sharedMemBytes;
  EmuDim preferred{0, 0, 0};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        shape.cluster = {attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z};
        require(volume(shape.cluster) > 0);
        break;
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:  // a hint: every cluster has the size that the launch can do with
        preferred = {attribute.value.preferredClusterDim.x, attribute.value.preferredClusterDim.y,
                     attribute.value.preferredClusterDim.z};
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        shape.programmatic = attribute.value.programmaticStreamSerializationAllowed != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: shape.cooperative = attribute.value.cooperative != 0; break;
      case CU_LAUNCH_ATTRIBUTE_IGNORE:
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:  // the rest are hints
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: break;
      default: refuse(CUDA_ERROR_NOT_SUPPORTED, "launch attribute %d is not emulated", static_cast<int>(attribute.id));
    }
  }
  if (volume(preferred)) {
    const EmuDim& least = shape.cluster;
    require(volume(least) > 0 && preferred.x % least.x == 0 && preferred.y % least.y == 0 && preferred.z % least.z == 0);
  }
  return shape;
}

std::shared_ptr<const KernelWork> make_kernel_node(const CUDA_KERNEL_NODE_PARAMS* params, const KernelWork* before) {
  require(params);
  const auto function = function_of(params->func ? params->func : reinterpret_cast<CUfunction>(params->kern));
  LaunchShape shape;
  if (before) shape = before->shape;
  shape.grid = {params->gridDimX, params->gridDimY, params->gridDimZ};
  shape.block = {params->blockDimX, params->blockDimY, params->blockDimZ};
  shape.dynamic_shared = params->sharedMemBytes;
  return make_kernel_work(function, shape, params->kernelParams, params->extra);
}

CUDA_KERNEL_NODE_PARAMS kernel_node_params(const KernelWork& work) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = work.function->handle;
  params.gridDimX = work.shape.grid.x;
  params.gridDimY = work.shape.grid.y;
  params.gridDimZ = work.shape.grid.z;
  params.blockDimX = work.shape.block.x;
  params.blockDimY = work.shape.block.y;
  params.blockDimZ = work.shape.block.z;
  params.sharedMemBytes = work.shape.dynamic_shared;
  params.kernelParams = work.pointers.empty() ? nullptr : const_cast<void**>(work.pointers.data());
  params.ctx = work.module->context->handle;
  return params;
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared, CUstream stream, void** params, void** extra) {
  return entry([&] {
    LaunchShape shape;
    shape.grid = {grid_x, grid_y, grid_z};
    shape.block = {block_x, block_y, block_z};
    shape.dynamic_shared = shared;
    working_context();
    launch(function_of(function), shape, stream, params, extra);
  });
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                   unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** params) {
  return entry([&] {
    LaunchShape shape;
    shape.grid = {grid_x, grid_y, grid_z};
    shape.block = {block_x, block_y, block_z};
    shape.dynamic_shared = shared;
    shape.cooperative = true;
    working_context();
    launch(function_of(function), shape, stream, params, nullptr);
  });
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
  return entry([&] {
    require(config && (config->attrs || config->numAttrs == 0));
    working_context();
    launch(function_of(function), launch_shape(*config), config->hStream, params, extra);
  });
}
