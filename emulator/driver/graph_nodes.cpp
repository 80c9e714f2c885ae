// Nodes of each type: kernels, copies, memsets, host functions and nothing, in graphs and in executable graphs.
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
CUresult add(CUgraphNode* handle, CUgraph graph, const CUgraphNode* dependencies, size_t count, const MakeWork& make) {
  return entry([&] {
    require(handle && (dependencies || count == 0));
    const auto into = state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE);
    std::vector<std::shared_ptr<GraphNode>> after;
    for (size_t i = 0; i < count; ++i) {
      after.push_back(state().nodes.get(dependencies[i], CUDA_ERROR_INVALID_VALUE));
      require(after.back()->graph == into.get());
      for (size_t j = 0; j < i; ++j) require(after[j] != after[i]);
    }
    *handle = add_node(*into, make(), std::move(after))->handle;
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
    if (node.original->handle == handle) return node;
  }
  refuse(CUDA_ERROR_INVALID_VALUE);
}

template <class Kind>
CUresult set_executable_params(CUgraphExec graph, CUgraphNode handle,
                               const std::function<std::shared_ptr<const Work>(const Kind&)>& make) {
  return entry([&] {
    const auto found = state().executables.get(graph, CUDA_ERROR_INVALID_VALUE);
    auto& node = find_node(*found, handle);
    const auto* before = dynamic_cast<const Kind*>(node.work.get());
    require(before);
    node.work = make(*before);
  });
}

std::shared_ptr<Context> context_of(CUcontext handle) {
  return handle ? state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT) : working_context();
}

std::shared_ptr<const Work> make_host(const CUDA_HOST_NODE_PARAMS* params) {
  require(params && params->fn);
  return std::make_shared<HostWork>(*params);
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  return add(node, graph, dependencies, count, [] { return std::make_shared<EmptyWork>(); });
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
  return set_executable_params<KernelWork>(graph, node, [=](const KernelWork& before) {
    const auto after = make_kernel_node(params, &before);
    require(after->context() == before.context());  // "the function's owning context cannot change"
    return after;
  });
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
