// Work: what streams run and what nodes of graphs hold. Immutable; shared by operations and graphs.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>

namespace emu::driver {

struct Context;
struct Stream;

// The clusters of a grid that ran, by number: see LaunchResult in runtime/core.h.
struct Clusters {
  uint32_t first = 0, end = 0;
};

// Where and after what work runs.
struct Site {
  std::shared_ptr<Context> context;  // of the stream
  CUstream stream = nullptr;         // for callbacks
  Clusters previous;                 // the grid right before it in the stream, or that it alone depends on in a graph; else empty
  Clusters made;                     // of the grid that it runs
  bool early = false;                // it may begin while that grid still runs: a programmatic edge of a graph
};

// Thrown by work: `context` is broken from now on.
struct WorkFailure {
  std::shared_ptr<Context> context;
  CUresult code;
  std::string message;
};

class Work {
 public:
  virtual ~Work() = default;
  virtual CUgraphNodeType type() const = 0;
  virtual void run(Site& site) const = 0;  // without the lock
  virtual bool runs_after_errors() const { return false; }
};

class EmptyWork : public Work {
 public:
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_EMPTY; }
  void run(Site&) const override {}
};

// cuLaunchHostFunc and host nodes.
class HostWork : public Work {
 public:
  explicit HostWork(const CUDA_HOST_NODE_PARAMS& params) : params(params) {}
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_HOST; }
  void run(Site& site) const override;  // host_function.cpp

  const CUDA_HOST_NODE_PARAMS params;
};

}  // namespace emu::driver
