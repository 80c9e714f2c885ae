// Streams: queues of operations, each emptied by a host thread of its own; and events, which remember an operation.
#pragma once

#include <cuda.h>

#include <deque>
#include <memory>
#include <vector>

#include "state.h"
#include "work.h"

namespace emu::driver {

struct Capture;

// One item of a stream. It runs when its turn comes in the stream and everything in `after` is done.
struct Operation {
  std::shared_ptr<const Work> work;               // null: only a point in the stream
  std::vector<std::shared_ptr<Operation>> after;  // of other streams; emptied once done, so that history is not kept alive
  bool done = false;
  Clock::time_point ended;
};

struct Stream {
  CUstream handle = nullptr;
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  int priority = 0;
  unsigned long long id = 0;
  bool implicit = false;  // the legacy stream, or one per thread: not made by the program
  bool closed = false, has_thread = false;
  std::deque<std::shared_ptr<Operation>> queue;  // the first one may be running
  std::shared_ptr<Operation> last;               // ever enqueued
  std::condition_variable arrival;
  Clusters previous;                                 // of the last operation, if it was a grid
  std::shared_ptr<Capture> capture;                  // set while it is captured: capture.h
  std::vector<std::shared_ptr<GraphNode>> frontier;  // the nodes that what is captured next depends on

  bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
};

struct Event {
  CUevent handle = nullptr;
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  std::shared_ptr<Operation> recorded;  // null: never
  std::shared_ptr<Capture> capture;     // its last record was captured
  std::vector<std::shared_ptr<GraphNode>> frontier;
};

// ---- stream.cpp ---------------------------------------------------------------------------------------------------------------

std::shared_ptr<Stream> make_stream(const std::shared_ptr<Context>& context, unsigned flags, int priority, bool implicit);
// A stream handle as entry points get it: 0 and CU_STREAM_LEGACY mean the context's legacy stream. Throws if the stream's context
// is broken.
std::shared_ptr<Stream> stream_of(const std::shared_ptr<Context>& context, CUstream handle);
// Appends to a stream that is not captured, behind what the rules of the legacy stream ask for.
std::shared_ptr<Operation> enqueue(const std::shared_ptr<Stream>& stream, std::shared_ptr<const Work> work,
                                   std::vector<std::shared_ptr<Operation>> after = {});
// Appends, or adds a node to the graph that the stream is captured into; then null.
std::shared_ptr<Operation> submit(const std::shared_ptr<Stream>& stream, std::shared_ptr<const Work> work,
                                  std::vector<std::shared_ptr<Operation>> after = {});
// Submits to the legacy stream of the calling thread's context and waits.
void run_now(Lock& lock, std::shared_ptr<const Work> work);
void close_stream(Stream& stream);
std::vector<std::shared_ptr<Stream>> streams_of(const Context& context);
void wait_for_operation(Lock& lock, const std::shared_ptr<Operation>& operation);
void wait_for_context(Lock& lock, const Context& context);

}  // namespace emu::driver
