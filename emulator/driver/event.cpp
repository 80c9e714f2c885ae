// Events (driver API, "Event Management").
#include "capture.h"
#include "stream.h"

namespace emu::driver {
namespace {

CUresult record(CUevent handle, CUstream stream_handle, unsigned flags) {
  return entry([&] {
    require((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) == 0);
    const auto event = state().events.get(handle);
    const auto stream = stream_of(working_context(), stream_handle);
    if (event->context != stream->context) {
      refuse(CUDA_ERROR_INVALID_HANDLE, "an event and the stream that should record it are of different contexts");
    }
    if (stream->capture) {
      if (flags) refuse(CUDA_ERROR_NOT_SUPPORTED, "event record nodes of graphs are not emulated");
      capture_record(*event, *stream);
      return;
    }
    if (stream == stream->context->null_stream) refuse_implicit_dependency(*stream->context);
    event->capture.reset();
    event->frontier.clear();
    event->recorded = enqueue(stream, nullptr);
  });
}

// The event, if its state may be asked for.
std::shared_ptr<Event> watched(CUevent handle) {
  auto event = state().events.get(handle);
  event->context->check();
  if (event->capture) {
    event->capture->valid = false;
    refuse(CUDA_ERROR_CAPTURED_EVENT);
  }
  refuse_unsafe_call();
  return event;
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  return entry([&] {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    require(handle && (flags & ~kKnown) == 0);
    if (flags & CU_EVENT_INTERPROCESS) refuse(CUDA_ERROR_NOT_SUPPORTED, "CU_EVENT_INTERPROCESS is not emulated");
    auto event = std::make_shared<Event>();
    event->context = working_context();
    event->flags = flags;
    *handle = state().events.add(event);
  });
}

CUresult cuEventDestroy(CUevent handle) {
  return entry([&] {
    const auto event = state().events.get(handle);
    state().events.remove(handle);
    event->context->check();
  });
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return record(event, stream, 0);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return record(event, stream, flags);
}

CUresult cuEventQuery(CUevent handle) {
  return entry([&] {
    const auto event = watched(handle);
    if (event->recorded && !event->recorded->done) refuse(CUDA_ERROR_NOT_READY);
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return entry([&](Lock& lock) {
    const auto event = watched(handle);
    wait_for_operation(lock, event->recorded);
    event->context->check();
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return entry([&] {
    require(milliseconds);
    const auto first = watched(start), second = watched(end);
    for (const auto& event : {first, second}) {
      if (!event->recorded || (event->flags & CU_EVENT_DISABLE_TIMING)) refuse(CUDA_ERROR_INVALID_HANDLE);
    }
    require(first->context == second->context, CUDA_ERROR_INVALID_HANDLE);
    for (const auto& event : {first, second}) {
      if (!event->recorded->done) refuse(CUDA_ERROR_NOT_READY);
    }
    *milliseconds = std::chrono::duration<float, std::milli>(second->recorded->ended - first->recorded->ended).count();
  });
}
