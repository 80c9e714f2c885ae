// Copies of every kind, as the one form that holds them all: a box of rows and slices (CUDA_MEMCPY3D).
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "work.h"

namespace emu::driver {

// Whose memory lies at an address.
struct Owner {
  int device;              // kHostDevice: of host memory that no context knows
  const Context* context;  // that made it, or page-locked it; null: of a pool

  bool operator==(const Owner&) const = default;
};
Owner owner_of(const void* address);

class CopyWork : public Work {
 public:
  // `staged`: what the source points into, if it is a copy of pageable memory.
  CopyWork(const CUDA_MEMCPY3D& params, std::shared_ptr<Context> context, std::shared_ptr<std::vector<char>> staged);

  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_MEMCPY; }
  void run(Site& site) const override;

  const CUDA_MEMCPY3D params;
  const std::shared_ptr<Context> context;
  const Owner from, to;

 private:
  const std::shared_ptr<std::vector<char>> staged_;
};

// ---- copy.cpp -------------------------------------------------------------------------------------------------------------------
void validate(const CUDA_MEMCPY3D& params);       // throws what the driver would return
bool from_pageable(const CUDA_MEMCPY3D& params);  // the source is host memory that is not page-locked
bool to_pageable(const CUDA_MEMCPY3D& params);
void check_device_range(CUdeviceptr address, size_t bytes);  // one live allocation, or page-locked memory, holds it
// What cuGraphExecMemcpyNodeSetParams asks for: both are one line, between memory of the same owners.
void validate_change(const CopyWork& before, const CopyWork& after);

// ---- copy_api.cpp ---------------------------------------------------------------------------------------------------------------
std::shared_ptr<const CopyWork> make_copy_node(const CUDA_MEMCPY3D* params, const std::shared_ptr<Context>& context);
CUDA_MEMCPY3D copy_node_params(const CopyWork& work);

}  // namespace emu::driver
