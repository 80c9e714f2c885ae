// The structure of graphs: making, joining, listing and destroying nodes (driver API, "Graph Management").
#include "graph.h"

#include <algorithm>

#include "state.h"

namespace emu::driver {

GraphNode::~GraphNode() {
  std::vector<std::shared_ptr<GraphNode>> pending = std::move(after);
  while (!pending.empty()) {
    std::shared_ptr<GraphNode> node = std::move(pending.back());
    pending.pop_back();
    if (node.use_count() > 1) continue;
    for (auto& edge : node->after) pending.push_back(std::move(edge));
    node->after.clear();
  }
}

std::shared_ptr<GraphNode> add_node(Graph& graph, std::shared_ptr<const Work> work, std::vector<std::shared_ptr<GraphNode>> after) {
  auto node = std::make_shared<GraphNode>();
  node->graph = &graph;
  node->work = std::move(work);
  node->after = std::move(after);
  state().nodes.add(node);
  graph.nodes.push_back(node);
  return node;
}

CUgraph register_graph(const std::shared_ptr<Graph>& graph) {
  return graph->handle ? graph->handle : state().graphs.add(graph);
}

void refuse_edge_data(const CUgraphEdgeData* data, size_t count) {
  for (size_t i = 0; data && i < count; ++i) {
    if (data[i].type || data[i].from_port || data[i].to_port) {
      refuse(CUDA_ERROR_NOT_SUPPORTED, "edge data of graphs is not emulated");
    }
  }
}

namespace {

void forget(GraphNode& node) {
  state().nodes.remove(node.handle);
  node.graph = nullptr;
}

bool depends(const GraphNode& node, const std::shared_ptr<GraphNode>& on) {
  return std::find(node.after.begin(), node.after.end(), on) != node.after.end();
}

// Fills a caller's array in the way of cuGraphGetNodes: without an array only the number, else at most that many, the rest null.
void list(const std::vector<CUgraphNode>& found, CUgraphNode* into, size_t* count) {
  require(count);
  if (into) {
    for (size_t i = 0; i < *count; ++i) into[i] = i < found.size() ? found[i] : nullptr;
    *count = std::min(*count, found.size());
  } else {
    *count = found.size();
  }
}

std::vector<CUgraphNode> handles(const std::vector<std::shared_ptr<GraphNode>>& nodes) {
  std::vector<CUgraphNode> found;
  for (const auto& node : nodes) found.push_back(node->handle);
  return found;
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  return entry([&] {
    require(graph && flags == 0);
    *graph = register_graph(std::make_shared<Graph>());
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  return entry([&] {
    const auto found = state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE);
    for (const auto& node : found->nodes) forget(*node);
    state().graphs.remove(graph);
  });
}

CUresult cuGraphClone(CUgraph* clone, CUgraph original) {
  return entry([&] {
    require(clone);
    const auto from = state().graphs.get(original, CUDA_ERROR_INVALID_VALUE);
    auto to = std::make_shared<Graph>();
    for (const auto& node : from->nodes) add_node(*to, node->work, {});
    for (size_t i = 0; i < from->nodes.size(); ++i) {
      for (const auto& edge : from->nodes[i]->after) {
        const auto at = std::find(from->nodes.begin(), from->nodes.end(), edge) - from->nodes.begin();
        to->nodes[i]->after.push_back(to->nodes[static_cast<size_t>(at)]);
      }
    }
    *clone = register_graph(to);
  });
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  return entry([&] {
    const auto node = state().nodes.get(handle, CUDA_ERROR_INVALID_VALUE);
    auto& nodes = node->graph->nodes;
    for (const auto& other : nodes) {
      other->after.erase(std::remove(other->after.begin(), other->after.end(), node), other->after.end());
    }
    nodes.erase(std::remove(nodes.begin(), nodes.end(), node), nodes.end());
    forget(*node);
  });
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
                                size_t count) {
  return entry([&] {
    const auto found = state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE);
    require(count == 0 || (from && to));
    refuse_edge_data(data, count);
    for (size_t i = 0; i < count; ++i) {
      const auto first = state().nodes.get(from[i], CUDA_ERROR_INVALID_VALUE),
                 second = state().nodes.get(to[i], CUDA_ERROR_INVALID_VALUE);
      require(first->graph == found.get() && second->graph == found.get() && first != second && !depends(*second, first));
      second->after.push_back(first);
    }
  });
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
                                   size_t count) {
  return entry([&] {
    const auto found = state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE);
    require(count == 0 || (from && to));
    refuse_edge_data(data, count);
    for (size_t i = 0; i < count; ++i) {
      const auto first = state().nodes.get(from[i], CUDA_ERROR_INVALID_VALUE),
                 second = state().nodes.get(to[i], CUDA_ERROR_INVALID_VALUE);
      require(first->graph == found.get() && depends(*second, first));
      second->after.erase(std::find(second->after.begin(), second->after.end(), first));
    }
  });
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return entry([&] { list(handles(state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE)->nodes), nodes, count); });
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return entry([&] {
    std::vector<CUgraphNode> roots;
    for (const auto& node : state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE)->nodes) {
      if (node->after.empty()) roots.push_back(node->handle);
    }
    list(roots, nodes, count);
  });
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  return entry([&] {
    require(count && !from == !to);
    std::vector<CUgraphNode> first, second;
    for (const auto& node : state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE)->nodes) {
      for (const auto& edge : node->after) {
        first.push_back(edge->handle);
        second.push_back(node->handle);
      }
    }
    size_t capacity = *count;
    for (size_t i = 0; data && i < capacity; ++i) data[i] = CUgraphEdgeData();
    list(first, from, &capacity);
    list(second, to, count);
  });
}

CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return entry([&] {
    require(count);
    for (size_t i = 0; data && nodes && i < *count; ++i) data[i] = CUgraphEdgeData();
    list(handles(state().nodes.get(handle, CUDA_ERROR_INVALID_VALUE)->after), nodes, count);
  });
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return entry([&] {
    require(count);
    for (size_t i = 0; data && nodes && i < *count; ++i) data[i] = CUgraphEdgeData();
    const auto node = state().nodes.get(handle, CUDA_ERROR_INVALID_VALUE);
    std::vector<CUgraphNode> found;
    for (const auto& other : node->graph->nodes) {
      if (depends(*other, node)) found.push_back(other->handle);
    }
    list(found, nodes, count);
  });
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return entry([&] {
    require(type);
    *type = state().nodes.get(handle, CUDA_ERROR_INVALID_VALUE)->work->type();
  });
}
