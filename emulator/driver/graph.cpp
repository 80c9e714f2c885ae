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

bool is_early(const CUgraphEdgeData* data, size_t edge) {
  if (!data || !(data[edge].type || data[edge].from_port || data[edge].to_port)) return false;
  if (data[edge].type != CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC || data[edge].from_port != CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC ||
      data[edge].to_port) {
    refuse(CUDA_ERROR_NOT_SUPPORTED, "edge data of graphs: type %d from port %d to port %d is not emulated", data[edge].type,
           data[edge].from_port, data[edge].to_port);
  }
  return true;
}

void require_early(const Work& first, const Work& second, size_t others) {
  require(first.type() == CU_GRAPH_NODE_TYPE_KERNEL && second.type() == CU_GRAPH_NODE_TYPE_KERNEL);
  if (others) refuse(CUDA_ERROR_NOT_SUPPORTED, "edge data of graphs: a programmatic edge beside another one is not emulated");
}

namespace {

CUgraphEdgeData edge_data(const GraphNode& node) {
  CUgraphEdgeData data{};
  if (node.early) data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  return data;
}

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
      to->nodes[i]->early = from->nodes[i]->early;
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
      if (other->after.empty()) other->early = false;
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
    for (size_t i = 0; i < count; ++i) {
      const auto first = state().nodes.get(from[i], CUDA_ERROR_INVALID_VALUE),
                 second = state().nodes.get(to[i], CUDA_ERROR_INVALID_VALUE);
      require(first->graph == found.get() && second->graph == found.get() && first != second && !depends(*second, first));
      const bool early = is_early(data, i);
      if (early || second->early) require_early(*first->work, *second->work, second->after.size());
      second->after.push_back(first);
      second->early = early;
    }
  });
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
                                   size_t count) {
  return entry([&] {
    const auto found = state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE);
    require(count == 0 || (from && to));
    for (size_t i = 0; i < count; ++i) {
      const auto first = state().nodes.get(from[i], CUDA_ERROR_INVALID_VALUE),
                 second = state().nodes.get(to[i], CUDA_ERROR_INVALID_VALUE);
      require(first->graph == found.get() && depends(*second, first) && is_early(data, i) == second->early);
      second->early = false;
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
    std::vector<CUgraphEdgeData> carried;
    for (const auto& node : state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE)->nodes) {
      for (const auto& edge : node->after) {
        first.push_back(edge->handle);
        second.push_back(node->handle);
        carried.push_back(edge_data(*node));
      }
    }
    size_t capacity = *count;
    for (size_t i = 0; data && i < capacity; ++i) data[i] = i < carried.size() ? carried[i] : CUgraphEdgeData();
    list(first, from, &capacity);
    list(second, to, count);
  });
}

CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return entry([&] {
    require(count);
    const auto node = state().nodes.get(handle, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; data && nodes && i < *count; ++i) data[i] = edge_data(*node);
    list(handles(node->after), nodes, count);
  });
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return entry([&] {
    require(count);
    const auto node = state().nodes.get(handle, CUDA_ERROR_INVALID_VALUE);
    std::vector<CUgraphNode> found;
    for (const auto& other : node->graph->nodes) {
      if (!depends(*other, node)) continue;
      if (data && nodes && found.size() < *count) data[found.size()] = edge_data(*other);
      found.push_back(other->handle);
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
