// Launching kernels: the shape of a launch, its checks, and the work it becomes.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "abi/emulator.h"
#include "work.h"

namespace emu::driver {

struct Context;
struct Function;
struct Module;

struct LaunchShape {
  EmuDim grid{1, 1, 1}, block{1, 1, 1};
  EmuDim cluster{0, 0, 0};  // as the launch asks for it; zeros: not at all
  uint32_t dynamic_shared = 0;
  bool programmatic = false, cooperative = false;

  EmuDim cluster_for(const Function& function) const;  // of the launch, else of the kernel, else one block
};

inline uint32_t volume(const EmuDim& dim) {
  return dim.x * dim.y * dim.z;
}

// Parameters, packed at the kernel's offsets; at an address that is as aligned as their place in the constant bank, for the sake of
// a CUtensorMap among them.
class Params {
 public:
  explicit Params(size_t bytes = 0) : lines_((kLead + bytes + sizeof(Line) - 1) / sizeof(Line)) {}

  char* data() { return reinterpret_cast<char*>(lines_.data()) + kLead; }
  const char* data() const { return reinterpret_cast<const char*>(lines_.data()) + kLead; }

 private:
  struct alignas(128) Line {
    char bytes[128];
  };
  static constexpr size_t kLead = kEmuParamStart % sizeof(Line);

  std::vector<Line> lines_;
};

class KernelWork : public Work {
 public:
  KernelWork(std::shared_ptr<Function> function, const LaunchShape& shape, Params params);

  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_KERNEL; }
  void run(Site& site) const override;
  std::shared_ptr<Context> context() const;

  const std::shared_ptr<Function> function;
  const std::shared_ptr<Module> module;
  const LaunchShape shape;
  const Params params;
  const std::vector<void*> pointers;  // into `params`, for cuGraphKernelNodeGetParams
};

LaunchShape launch_shape(const CUlaunchConfig& config);             // with its attributes; throws for those not emulated
void validate(const Function& function, const LaunchShape& shape);  // throws what the driver would return
void validate_block(const EmuKernel& kernel, const EmuDim& block);
// Validates, and submits to a stream of the calling thread's context.
void launch(const std::shared_ptr<Function>& function, const LaunchShape& shape, CUstream stream, void** params, void** extra);
std::shared_ptr<const KernelWork> make_kernel_work(const std::shared_ptr<Function>& function, const LaunchShape& shape,
                                                   void** params, void** extra);

// A kernel node; what its parameters do not say (the cluster) it keeps from `before`, if there is one.
std::shared_ptr<const KernelWork> make_kernel_node(const CUDA_KERNEL_NODE_PARAMS* params, const KernelWork* before);
CUDA_KERNEL_NODE_PARAMS kernel_node_params(const KernelWork& work);

}  // namespace emu::driver
