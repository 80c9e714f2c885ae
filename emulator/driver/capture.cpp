// Stream capture: see capture.h.
#include "capture.h"

#include <algorithm>
#include <set>
#include <utility>

#include "graph.h"
#include "stream.h"

namespace emu::driver {
namespace {

thread_local CUstreamCaptureMode interaction_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* const active = new std::vector<std::shared_ptr<Capture>>;
  return *active;
}

std::vector<std::shared_ptr<Stream>> streams_in(const Capture& capture) {
  return state().streams.select([&](const Stream& stream) { return stream.capture.get() == &capture; });
}

void check_valid(const Capture& capture) {
  if (!capture.valid) refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

void merge(std::vector<std::shared_ptr<GraphNode>>& into, const std::vector<std::shared_ptr<GraphNode>>& more) {
  for (const auto& node : more) {
    if (std::find(into.begin(), into.end(), node) == into.end()) into.push_back(node);
  }
}

// Is everything that the captured streams did known to the origin's frontier?
bool all_joined(const Capture& capture) {
  std::set<const GraphNode*> known;
  std::vector<const GraphNode*> pending;
  for (const auto& node : capture.origin->frontier) pending.push_back(node.get());
  while (!pending.empty()) {
    const GraphNode* node = pending.back();
    pending.pop_back();
    if (!known.insert(node).second) continue;
    for (const auto& edge : node->after) pending.push_back(edge.get());
  }
  for (const auto& stream : streams_in(capture)) {
    for (const auto& node : stream->frontier) {
      if (!known.count(node.get())) return false;
    }
  }
  return true;
}

void end(const std::shared_ptr<Capture>& capture) {
  for (const auto& stream : streams_in(*capture)) {
    stream->capture.reset();
    stream->frontier.clear();
  }
  auto& active = captures();
  active.erase(std::remove(active.begin(), active.end(), capture), active.end());
}

}  // namespace

void capture_work(Stream& stream, std::shared_ptr<const Work> work) {
  check_valid(*stream.capture);
  stream.frontier = {add_node(*stream.capture->graph, std::move(work), stream.frontier)};
}

void capture_record(Event& event, const Stream& stream) {
  check_valid(*stream.capture);
  event.capture = stream.capture;
  event.frontier = stream.frontier;
}

void capture_wait(Stream& stream, const Event& event) {
  const bool live = event.capture && std::count(captures().begin(), captures().end(), event.capture);
  if (stream.capture) check_valid(*stream.capture);
  if (!live) {
    if (!stream.capture) refuse(CUDA_ERROR_CAPTURED_EVENT, "an event that was last recorded in a capture, which has ended");
    stream.capture->valid = false;
    refuse(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a captured stream would wait for an event that was not recorded in its capture");
  }
  check_valid(*event.capture);
  if (stream.capture && stream.capture != event.capture) {
    stream.capture->valid = event.capture->valid = false;
    refuse(CUDA_ERROR_STREAM_CAPTURE_MERGE, "an event would merge two captures");
  }
  if (!stream.capture && &stream == stream.context->null_stream.get()) {
    event.capture->valid = false;
    refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream cannot be captured");
  }
  stream.capture = event.capture;
  merge(stream.frontier, event.frontier);
}

void refuse_implicit_dependency(const Context& context) {
  bool found = false;
  for (const auto& stream : streams_of(context)) {
    if (!stream->capture || !stream->blocking()) continue;
    stream->capture->valid = false;
    found = true;
  }
  if (found) refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "work for the legacy stream while a blocking stream is captured");
}

void refuse_if_captured(const Stream& stream) {
  if (!stream.capture) return;
  stream.capture->valid = false;
  refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a call that a captured stream does not allow");
}

void refuse_if_captured(const Context& context) {
  for (const auto& stream : streams_of(context)) refuse_if_captured(*stream);
}

void refuse_unsafe_call() {
  if (interaction_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
  const auto self = std::this_thread::get_id();
  bool found = false;
  for (const auto& capture : captures()) {
    const bool own = capture->thread == self && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = interaction_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    capture->valid = false;
    found = true;
  }
  if (found) refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a call that is unsafe while a stream is captured (capture mode)");
}

void abandon_capture(Stream& stream) {
  const auto capture = std::exchange(stream.capture, nullptr);
  stream.frontier.clear();
  if (!capture) return;
  capture->valid = false;
  if (capture->origin == &stream) end(capture);
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  return entry([&] {
    require(mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    const auto context = working_context();
    const auto stream = stream_of(context, handle);
    if (stream == stream->context->null_stream) {
      refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured");
    }
    if (stream->capture) refuse(CUDA_ERROR_ILLEGAL_STATE, "the stream is captured already");
    auto capture = std::make_shared<Capture>();
    capture->id = state().next_id++;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream.get();
    capture->graph = std::make_shared<Graph>();
    stream->capture = capture;
    captures().push_back(capture);
  });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return entry([&] {
    require(graph);
    *graph = nullptr;
    const auto stream = stream_of(working_context(), handle);
    const auto capture = stream->capture;
    if (!capture) refuse(CUDA_ERROR_ILLEGAL_STATE, "cuStreamEndCapture of a stream that is not captured");
    if (capture->origin != stream.get()) {
      capture->valid = false;
      refuse(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
      refuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    const bool valid = capture->valid, joined = all_joined(*capture);
    end(capture);
    if (!valid) refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (!joined) refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a stream that joined the capture was not joined back into its origin");
    *graph = register_graph(capture->graph);
  });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return entry([&] {
    require(status);
    const auto context = working_context();
    const auto stream = stream_of(context, handle);
    if (stream == context->null_stream) refuse_implicit_dependency(*context);
    *status = !stream->capture         ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  });
}

namespace {

// The common part of both versions of cuStreamGetCaptureInfo.
CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* num_dependencies) {
  return entry([&] {
    require(status);
    const auto context = working_context();
    const auto stream = stream_of(context, handle);
    if (stream == context->null_stream) refuse_implicit_dependency(*context);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!stream->capture) return;
    *status = stream->capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    put(id, stream->capture->id);
    if (!stream->capture->valid) return;
    if (graph) {
      if (!stream->capture->graph->handle) register_graph(stream->capture->graph);
      *graph = stream->capture->graph->handle;
    }
    static thread_local std::vector<CUgraphNode> nodes;  // valid until the thread's next such call
    nodes.clear();
    for (const auto& node : stream->frontier) nodes.push_back(node->handle);
    put(num_dependencies, nodes.size());
    if (dependencies) *dependencies = nodes.data();
    if (edges) *edges = nullptr;  // no edge carries data
  });
}

}  // namespace

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* num_dependencies) {
  return capture_info(stream, status, id, graph, dependencies, edges, num_dependencies);
}

extern "C" CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                              const CUgraphNode** dependencies, size_t* num_dependencies) {
  return capture_info(stream, status, id, graph, dependencies, nullptr, num_dependencies);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return entry([&] {
    require(mode && *mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    std::swap(*mode, interaction_mode);
  });
}
