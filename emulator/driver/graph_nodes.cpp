// Nodes of each type: kernels, copies, memsets, host functions and nothing, in graphs and in executable graphs.
#include <algorithm>
#include <cstddef>
#include <functional>

#include "copy.h"
#include "graph.h"
#include "launch.h"
#include "memset.h"
#include "state.h"

namespace emu::driver {
namespace {

using MakeWork = std::function<std::shared_ptr<const Work>()>;

// The common part of cuGraphAdd...Node.
CUresult add(CUgraphNode* handle, CUgraph graph, const CUgraphNode* dependencies, size_t count, const MakeWork& make,
             const CUgraphEdgeData* data = nullptr) {
  return entry([&] {
    require(handle && (dependencies || count == 0));
    const auto into = state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE);
    std::vector<std::shared_ptr<GraphNode>> after;
    for (size_t i = 0; i < count; ++i) {
      after.push_back(state().nodes.get(dependencies[i], CUDA_ERROR_INVALID_VALUE));
      require(after.back()->graph == into.get());
      for (size_t j = 0; j < i; ++j) require(after[j] != after[i]);
    }
    const auto work = make();
    for (size_t i = 0; i < count; ++i) {
      if (is_early(data, i)) require_early(*after[i]->work, *work, count - 1);
    }
    const auto node = add_node(*into, work, std::move(after));
    node->early = count == 1 && is_early(data, 0);
    *handle = node->handle;
  });
}

// A node's work as the class of its type.
template <class Kind>
const Kind& work_of(CUgraphNode handle, std::shared_ptr<GraphNode>& node) {
  node = state().nodes.get(handle, CUDA_ERROR_INVALID_VALUE);
  const auto* work = dynamic_cast<const Kind*>(node->work.get());
  require(work);
  return *work;
}

template <class Kind, class Params>
CUresult get_params(CUgraphNode handle, Params* params) {
  return entry([&] {
    require(params);
    std::shared_ptr<GraphNode> node;
    *params = work_of<Kind>(handle, node).params;
  });
}

template <class Kind>
CUresult set_params(CUgraphNode handle, const MakeWork& make) {
  return entry([&] {
    std::shared_ptr<GraphNode> node;
    work_of<Kind>(handle, node);
    node->work = make();
  });
}

ExecutableGraph::Node& find_node(ExecutableGraph& graph, CUgraphNode handle) {
  for (auto& node : graph.nodes) {
    if (node.original->handle != handle) continue;
    if (!node.original->graph) {
      refuse(CUDA_ERROR_INVALID_VALUE, "the node was destroyed; a graph must outlive changes to what was made of it");
    }
    return node;
  }
  refuse(CUDA_ERROR_INVALID_VALUE);
}

std::shared_ptr<Context> context_of(CUcontext handle) {
  return handle ? state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT) : working_context();
}

std::shared_ptr<const Work> make_host(const CUDA_HOST_NODE_PARAMS* params) {
  require(params && params->fn);
  return std::make_shared<HostWork>(*params);
}

// What may become of an executable graph's node.
void validate_new_work(const Work& before, const Work& after) {
  if (before.type() == CU_GRAPH_NODE_TYPE_KERNEL) {  // "the function's owning context cannot change"
    require(dynamic_cast<const KernelWork&>(after).context() == dynamic_cast<const KernelWork&>(before).context());
  } else if (before.type() == CU_GRAPH_NODE_TYPE_MEMCPY) {
    validate_change(dynamic_cast<const CopyWork&>(before), dynamic_cast<const CopyWork&>(after));
  } else if (before.type() == CU_GRAPH_NODE_TYPE_MEMSET) {
    validate_change(dynamic_cast<const MemsetWork&>(before), dynamic_cast<const MemsetWork&>(after));
  }
}

template <class Kind>
CUresult set_executable_params(CUgraphExec graph, CUgraphNode handle,
                               const std::function<std::shared_ptr<const Work>(const Kind&)>& make) {
  return entry([&] {
    const auto found = state().executables.get(graph, CUDA_ERROR_INVALID_VALUE);
    auto& node = find_node(*found, handle);
    const auto* before = dynamic_cast<const Kind*>(node.work.get());
    require(before);
    const auto after = make(*before);
    validate_new_work(*before, *after);
    node.work = after;
  });
}

// ---- nodes of whichever type ----------------------------------------------------------------------------------------------------

CUDA_KERNEL_NODE_PARAMS kernel_params(const CUDA_KERNEL_NODE_PARAMS_v3& p) {
  return {p.func, p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ, p.sharedMemBytes, p.kernelParams,
          p.extra, p.kern, p.ctx};
}

CUDA_MEMSET_NODE_PARAMS memset_params(const CUDA_MEMSET_NODE_PARAMS_v2& p) {
  return {p.dst, p.pitch, p.value, p.elementSize, p.width, p.height};
}

// "All unused bytes must be set to zero."
void require_unused(const CUgraphNodeParams& params, size_t used) {
  const char* bytes = reinterpret_cast<const char*>(&params);
  const size_t first = offsetof(CUgraphNodeParams, kernel) + used;
  const bool zero = std::all_of(bytes + first, bytes + sizeof params, [](char byte) { return byte == 0; }) &&
                    std::all_of(params.reserved0, params.reserved0 + 3, [](int word) { return word == 0; });
  if (!zero) refuse(CUDA_ERROR_INVALID_VALUE, "CUgraphNodeParams: unused bytes must be zero");
}

// `before`: what the node did, which has the same type; null: a new node.
std::shared_ptr<const Work> make_work(const CUgraphNodeParams* params, const Work* before) {
  require(params && (!before || before->type() == params->type));
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      require_unused(*params, sizeof params->kernel);
      const CUDA_KERNEL_NODE_PARAMS kernel = kernel_params(params->kernel);
      return make_kernel_node(&kernel, dynamic_cast<const KernelWork*>(before));
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      require_unused(*params, sizeof params->memcpy);
      require(params->memcpy.flags == 0 && params->memcpy.reserved == 0);
      return make_copy_node(&params->memcpy.copyParams, context_of(params->memcpy.copyCtx));
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      require_unused(*params, sizeof params->memset);
      const CUDA_MEMSET_NODE_PARAMS memset = memset_params(params->memset);
      return make_memset_node(&memset, context_of(params->memset.ctx));
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      require_unused(*params, sizeof params->host);
      const CUDA_HOST_NODE_PARAMS host{params->host.fn, params->host.userData};
      return make_host(&host);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY: require_unused(*params, 0); return std::make_shared<EmptyWork>();
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      refuse(CUDA_ERROR_NOT_SUPPORTED, "nodes of type %d in graphs are not emulated", static_cast<int>(params->type));
    default: refuse(CUDA_ERROR_INVALID_VALUE);
  }
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  return add(node, graph, dependencies, count, [] { return std::make_shared<EmptyWork>(); });
}

CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* data,
                        size_t count, CUgraphNodeParams* params) {
  return add(node, graph, dependencies, count, [=] { return make_work(params, nullptr); }, data);
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  return entry([&] {
    const auto found = state().nodes.get(node, CUDA_ERROR_INVALID_VALUE);
    found->work = make_work(params, found->work.get());
  });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec graph, CUgraphNode node, CUgraphNodeParams* params) {
  return set_executable_params<Work>(graph, node, [=](const Work& before) { return make_work(params, &before); });
}

// ---- kernels ------------------------------------------------------------------------------------------------------------------

CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS* params) {
  return add(node, graph, dependencies, count, [=] { return make_kernel_node(params, nullptr); });
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  return entry([&] {
    require(params);
    std::shared_ptr<GraphNode> found;
    *params = kernel_node_params(work_of<KernelWork>(node, found));
  });
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  return entry([&] {
    std::shared_ptr<GraphNode> found;
    const KernelWork& before = work_of<KernelWork>(node, found);
    found->work = make_kernel_node(params, &before);
  });
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec graph, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  return set_executable_params<KernelWork>(graph, node,
                                           [=](const KernelWork& before) { return make_kernel_node(params, &before); });
}

// ---- copies -------------------------------------------------------------------------------------------------------------------

CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMCPY3D* params, CUcontext context) {
  return add(node, graph, dependencies, count, [=] { return make_copy_node(params, context_of(context)); });
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* params) {
  return entry([&] {
    require(params);
    std::shared_ptr<GraphNode> found;
    *params = copy_node_params(work_of<CopyWork>(node, found));
  });
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  return entry([&] {
    std::shared_ptr<GraphNode> found;
    const CopyWork& before = work_of<CopyWork>(node, found);
    found->work = make_copy_node(params, before.context);
  });
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec graph, CUgraphNode node, const CUDA_MEMCPY3D* params, CUcontext context) {
  return set_executable_params<CopyWork>(graph, node, [=](const CopyWork&) { return make_copy_node(params, context_of(context)); });
}

// ---- memsets ------------------------------------------------------------------------------------------------------------------

CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return add(node, graph, dependencies, count, [=] { return make_memset_node(params, context_of(context)); });
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
  return get_params<MemsetWork>(node, params);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  return entry([&] {
    std::shared_ptr<GraphNode> found;
    const MemsetWork& before = work_of<MemsetWork>(node, found);
    found->work = make_memset_node(params, before.context);
  });
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec graph, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params,
                                        CUcontext context) {
  return set_executable_params<MemsetWork>(graph, node,
                                           [=](const MemsetWork&) { return make_memset_node(params, context_of(context)); });
}

// ---- host functions -----------------------------------------------------------------------------------------------------------

CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS* params) {
  return add(node, graph, dependencies, count, [=] { return make_host(params); });
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
  return get_params<HostWork>(node, params);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return set_params<HostWork>(node, [=] { return make_host(params); });
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec graph, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return set_executable_params<HostWork>(graph, node, [=](const HostWork&) { return make_host(params); });
}

// ---- switching nodes off --------------------------------------------------------------------------------------------------------

CUresult cuGraphNodeSetEnabled(CUgraphExec graph, CUgraphNode node, unsigned enabled) {
  return entry([&] {
    const auto found = state().executables.get(graph, CUDA_ERROR_INVALID_VALUE);
    auto& at = find_node(*found, node);
    const CUgraphNodeType type = at.work->type();
    require(type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET);
    at.enabled = enabled != 0;
  });
}

CUresult cuGraphNodeGetEnabled(CUgraphExec graph, CUgraphNode node, unsigned* enabled) {
  return entry([&] {
    require(enabled);
    *enabled = find_node(*state().executables.get(graph, CUDA_ERROR_INVALID_VALUE), node).enabled;
  });
}
