// Stream capture: streams that record a graph instead of running (driver API, "Stream Management": cuStreamBeginCapture).
#pragma once

#include <cuda.h>

#include <memory>
#include <thread>

#include "work.h"

namespace emu::driver {

struct Context;
struct Event;
struct Graph;
struct Stream;

struct Capture {
  unsigned long long id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;  // that began it
  const Stream* origin = nullptr;
  std::shared_ptr<Graph> graph;
  bool valid = true;
};

void capture_work(Stream& stream, std::shared_ptr<const Work> work);  // adds a node behind the stream's frontier
void capture_record(Event& event, const Stream& stream);
// A captured event draws the stream into its capture. The event or the stream is captured.
void capture_wait(Stream& stream, const Event& event);

// The legacy stream would wait for a blocking stream that is captured: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT.
void refuse_implicit_dependency(const Context& context);
// The call must not be made on this stream, or this context, while it is captured; it ends the capture's validity.
void refuse_if_captured(const Stream& stream);
void refuse_if_captured(const Context& context);
// Calls that a capture in mode global or thread-local forbids: allocations, frees, waiting (cuThreadExchangeStreamCaptureMode).
void refuse_unsafe_call();
void abandon_capture(Stream& stream);  // which is being destroyed

}  // namespace emu::driver
