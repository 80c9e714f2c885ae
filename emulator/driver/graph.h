// Graphs: nodes of work and what they depend on, and their executable form.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "work.h"

namespace emu::driver {

struct Graph;
struct Operation;

struct GraphNode {
  CUgraphNode handle = nullptr;
  Graph* graph = nullptr;  // null: destroyed
  std::shared_ptr<const Work> work;
  std::vector<std::shared_ptr<GraphNode>> after;  // its dependencies
  bool early = false;  // a kernel's one dependency is a kernel that may still run when it begins: the edge is programmatic

  ~GraphNode();  // a chain of nodes is taken apart link by link, not by recursion
};

struct Graph {
  CUgraph handle = nullptr;                       // null: a capture that has not ended
  std::vector<std::shared_ptr<GraphNode>> nodes;  // in the order in which they were added
};

// A snapshot of a graph: nodes come after what they depend on.
struct ExecutableGraph {
  struct Node {
    std::shared_ptr<GraphNode> original;
    std::shared_ptr<const Work> work;
    std::vector<size_t> after;
    bool enabled = true;
    bool early = false;
  };
  CUgraphExec handle = nullptr;
  unsigned long long flags = 0;
  std::vector<Node> nodes;
  std::shared_ptr<Operation> last_launch;  // which the next one waits for, on whatever stream
};

// ---- graph.cpp ----------------------------------------------------------------------------------------------------------------
std::shared_ptr<GraphNode> add_node(Graph& graph, std::shared_ptr<const Work> work, std::vector<std::shared_ptr<GraphNode>> after);
CUgraph register_graph(const std::shared_ptr<Graph>& graph);
// Whether an edge is programmatic; throws for data that means anything else.
bool is_early(const CUgraphEdgeData* data, size_t edge);
// Throws where such an edge cannot be: it joins kernels, and beside others of the same node it is not emulated.
void require_early(const Work& first, const Work& second, size_t others);

// ---- graph_exec.cpp -----------------------------------------------------------------------------------------------------------
// Nodes in an order in which they can run; throws CUDA_ERROR_INVALID_VALUE for a cycle.
std::vector<std::shared_ptr<GraphNode>> ordered_nodes(const Graph& graph);

}  // namespace emu::driver
