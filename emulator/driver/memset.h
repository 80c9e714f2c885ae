// Memsets: rows of equal elements.
#pragma once

#include <cuda.h>

#include <memory>

#include "work.h"

namespace emu::driver {

class MemsetWork : public Work {
 public:
  MemsetWork(const CUDA_MEMSET_NODE_PARAMS& params, std::shared_ptr<Context> context)
      : params(params), context(std::move(context)) {}

  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_MEMSET; }
  void run(Site& site) const override;

  const CUDA_MEMSET_NODE_PARAMS params;
  const std::shared_ptr<Context> context;
};

std::shared_ptr<const MemsetWork> make_memset_node(const CUDA_MEMSET_NODE_PARAMS* params, const std::shared_ptr<Context>& context);
// What cuGraphExecMemsetNodeSetParams asks for: the same number of rows, and the same box if there are several.
void validate_change(const MemsetWork& before, const MemsetWork& after);

}  // namespace emu::driver
