// Executable graphs: making, updating and launching them.
//
// The nodes of a launch run one after the other on the stream's thread. Among the nodes that could run next, EMU_SCHED picks, so
// that a forgotten dependency shows.
#include <algorithm>
#include <random>

#include "capture.h"
#include "graph.h"
#include "runtime/settings.h"
#include "state.h"
#include "stream.h"

namespace emu::driver {

std::vector<std::shared_ptr<GraphNode>> ordered_nodes(const Graph& graph) {
  std::vector<std::shared_ptr<GraphNode>> ordered, pending = graph.nodes;
  std::set<const GraphNode*> placed;
  auto ready = [&](const std::shared_ptr<GraphNode>& node) {
    return std::all_of(node->after.begin(), node->after.end(), [&](const auto& edge) { return placed.count(edge.get()); });
  };
  while (!pending.empty()) {
    const size_t before = ordered.size();
    std::vector<std::shared_ptr<GraphNode>> later;
    for (const auto& node : pending) {
      if (ready(node)) {
        placed.insert(node.get());
        ordered.push_back(node);
      } else {
        later.push_back(node);
      }
    }
    if (ordered.size() == before) refuse(CUDA_ERROR_INVALID_VALUE, "the graph has a cycle");
    pending = std::move(later);
  }
  return ordered;
}

namespace {

// Runs every node of a snapshot.
class GraphWork : public Work {
 public:
  explicit GraphWork(std::vector<ExecutableGraph::Node> nodes, unsigned seed) : nodes_(std::move(nodes)), seed_(seed) {}

  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_GRAPH; }

  void run(Site& site) const override {
    std::mt19937 random(seed_);
    std::vector<size_t> missing(nodes_.size());
    std::vector<std::vector<size_t>> followers(nodes_.size());
    std::vector<Clusters> made(nodes_.size());
    std::vector<size_t> ready;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      missing[i] = nodes_[i].after.size();
      if (missing[i] == 0) ready.push_back(i);
      for (size_t before : nodes_[i].after) followers[before].push_back(i);
    }
    while (!ready.empty()) {
      const size_t at = pick(ready.size(), random), index = ready[at];
      ready.erase(ready.begin() + static_cast<ptrdiff_t>(at));
      const ExecutableGraph::Node& node = nodes_[index];
      Site inner{site.context, site.stream, {}, {}, node.early};
      if (node.after.size() == 1) inner.previous = made[node.after[0]];
      if (node.enabled) node.work->run(inner);
      made[index] = inner.made;
      for (size_t next : followers[index]) {
        if (--missing[next] == 0) ready.push_back(next);
      }
    }
  }

 private:
  static size_t pick(size_t count, std::mt19937& random) {
    switch (settings().schedule) {
      case Schedule::kForward: return 0;
      case Schedule::kReverse: return count - 1;
      case Schedule::kRandom: return random() % count;
    }
    return 0;
  }

  const std::vector<ExecutableGraph::Node> nodes_;
  const unsigned seed_;
};

std::vector<ExecutableGraph::Node> snapshot(const Graph& graph) {
  const auto ordered = ordered_nodes(graph);
  std::vector<ExecutableGraph::Node> nodes;
  for (const auto& node : ordered) {
    ExecutableGraph::Node made{node, node->work, {}, true, node->early};
    for (const auto& edge : node->after) {
      made.after.push_back(static_cast<size_t>(std::find(ordered.begin(), ordered.end(), edge) - ordered.begin()));
    }
    nodes.push_back(std::move(made));
  }
  return nodes;
}

void instantiate(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  require(executable);
  if (flags &
      ~static_cast<unsigned long long>(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                       CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)) {
    refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphInstantiate flags 0x%llx: launching graphs from devices is not emulated", flags);
  }
  auto made = std::make_shared<ExecutableGraph>();
  made->flags = flags;
  made->nodes = snapshot(*state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE));
  *executable = state().executables.add(made);
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  return entry([&] { instantiate(executable, graph, flags); });
}

extern "C" CUresult cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph, CUgraphNode* error_node, char* log,
                                          size_t log_bytes) {
  return entry([&] {
    put(error_node, static_cast<CUgraphNode>(nullptr));
    if (log && log_bytes) *log = '\0';
    instantiate(executable, graph, 0);
  });
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return entry([&] {
    require(params);
    params->hErrNode_out = nullptr;
    params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    instantiate(executable, graph, params->flags);
    params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  });
}

CUresult cuGraphExecGetFlags(CUgraphExec executable, cuuint64_t* flags) {
  return entry([&] {
    require(flags);
    *flags = state().executables.get(executable, CUDA_ERROR_INVALID_VALUE)->flags;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return entry([&] {
    state().executables.get(executable, CUDA_ERROR_INVALID_VALUE);
    state().executables.remove(executable);
  });
}

CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
  return entry([&] {
    state().executables.get(executable, CUDA_ERROR_INVALID_VALUE);
    refuse_if_captured(*stream_of(working_context(), stream));
  });
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  return entry([&] {
    const auto found = state().executables.get(executable, CUDA_ERROR_INVALID_VALUE);
    const auto stream = stream_of(working_context(), handle);
    refuse_if_captured(*stream);
    meet_enqueue_fault(*stream->context->device);
    const unsigned seed = static_cast<unsigned>(emu::settings().seed + state().next_id++);
    std::vector<std::shared_ptr<Operation>> after;
    if (found->last_launch && !found->last_launch->done) after.push_back(found->last_launch);
    found->last_launch = submit(stream, std::make_shared<GraphWork>(found->nodes, seed), std::move(after));
  });
}

// Nodes pair up in the order of the two graphs; structure and types must be the same.
CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  return entry([&] {
    const auto found = state().executables.get(executable, CUDA_ERROR_INVALID_VALUE);
    const auto nodes = snapshot(*state().graphs.get(graph, CUDA_ERROR_INVALID_VALUE));
    auto fail = [&](CUgraphExecUpdateResult why, CUgraphNode node) {
      if (info) *info = {why, node, nullptr};
      refuse(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    };
    if (nodes.size() != found->nodes.size()) fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].after != found->nodes[i].after || nodes[i].early != found->nodes[i].early) fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nodes[i].original->handle);
      if (nodes[i].work->type() != found->nodes[i].work->type()) {
        fail(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, nodes[i].original->handle);
      }
    }
    for (size_t i = 0; i < nodes.size(); ++i) found->nodes[i].work = nodes[i].work;
    if (info) *info = {CU_GRAPH_EXEC_UPDATE_SUCCESS, nullptr, nullptr};
  });
}
