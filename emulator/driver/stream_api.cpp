// The entry points of streams (driver API, "Stream Management").
#include <algorithm>

#include "capture.h"
#include "stream.h"

namespace emu::driver {
namespace {

constexpr int kLowestPriority = 0, kHighestPriority = -5;

CUresult create(CUstream* handle, unsigned flags, int priority) {
  return entry([&] {
    require(handle && (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) == 0);
    *handle = make_stream(working_context(), flags, std::clamp(priority, kHighestPriority, kLowestPriority), false)->handle;
  });
}

// Some fact about a stream.
template <class Value, class Ask>
CUresult ask(CUstream handle, Value* value, Ask question) {
  return entry([&] {
    require(value);
    *value = question(*stream_of(working_context(), handle));
  });
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return create(stream, flags, kLowestPriority);
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return create(stream, flags, priority);
}

// Returns at once; the stream's work goes on to its end.
CUresult cuStreamDestroy(CUstream handle) {
  return entry([&] {
    const auto stream = state().streams.get(handle);
    require(!stream->implicit, CUDA_ERROR_INVALID_HANDLE);
    abandon_capture(*stream);
    close_stream(*stream);
    stream->context->check();
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return entry([&](Lock& lock) {
    const auto stream = stream_of(working_context(), handle);
    refuse_if_captured(*stream);
    refuse_unsafe_call();
    if (stream == stream->context->null_stream) {  // behind everything that the legacy stream waits for
      refuse_implicit_dependency(*stream->context);
      wait_for_operation(lock, enqueue(stream, nullptr));
    } else {
      wait_for_operation(lock, stream->last);
    }
    stream->context->check();
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return entry([&] {
    const auto stream = stream_of(working_context(), handle);
    refuse_if_captured(*stream);
    if (stream == stream->context->null_stream) {
      refuse_implicit_dependency(*stream->context);
      for (const auto& other : streams_of(*stream->context)) {
        if (other->blocking() && other->last && !other->last->done) refuse(CUDA_ERROR_NOT_READY);
      }
    }
    if (stream->last && !stream->last->done) refuse(CUDA_ERROR_NOT_READY);
  });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  return entry([&] {
    require(flags == CU_EVENT_WAIT_DEFAULT);
    const auto stream = stream_of(working_context(), handle);
    const auto event = state().events.get(event_handle);
    if (stream->capture || event->capture) {
      capture_wait(*stream, *event);
      return;
    }
    if (!event->recorded || event->recorded->done) return;
    enqueue(stream, nullptr, {event->recorded});
  });
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return ask(stream, priority, [](const Stream& s) { return s.priority; });
}

CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
  return ask(stream, flags, [](const Stream& s) { return s.flags; });
}

CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  return ask(stream, id, [](const Stream& s) { return s.id; });
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  return ask(stream, context, [](const Stream& s) { return s.context->handle; });
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  return ask(stream, device, [](const Stream& s) { return s.context->device->index; });
}

CUresult cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  return entry([&] {
    working_context();
    put(lowest, kLowestPriority);
    put(highest, kHighestPriority);
  });
}
