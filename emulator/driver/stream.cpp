// How streams work: see stream.h.
#include "stream.h"

#include <algorithm>
#include <utility>

#include "capture.h"

namespace emu::driver {
namespace {

bool all_done(const std::vector<std::shared_ptr<Operation>>& operations) {
  return std::all_of(operations.begin(), operations.end(), [](const auto& operation) { return operation->done; });
}

void finish(Operation& operation) {
  operation.done = true;
  operation.ended = Clock::now();
  operation.after.clear();
  operation.work.reset();
  state().progress.notify_all();
}

void run_work(Lock& lock, Stream& stream, const Work& work) {
  Context& context = *stream.context;
  const bool broken = context.error || context.device->gone() || !context.alive;
  const Clusters previous = std::exchange(stream.previous, Clusters());
  if (broken && !work.runs_after_errors()) return;
  Site site{stream.context, stream.handle, previous, {}, false};
  lock.unlock();
  try {
    work.run(site);
    lock.lock();
  } catch (const WorkFailure& failure) {
    lock.lock();
    failure.context->fail(failure.code, failure.message);
  }
  stream.previous = site.made;
}

// The body of a stream's thread. It owns the stream, and ends when that is closed and empty.
void serve(const std::shared_ptr<Stream>& stream) {
  Lock lock(state().mutex);
  for (;;) {
    stream->arrival.wait(lock, [&] { return stream->closed || !stream->queue.empty(); });
    if (stream->queue.empty()) return;
    const std::shared_ptr<Operation> operation = stream->queue.front();
    state().progress.wait(lock, [&] { return all_done(operation->after) || !stream->context->alive; });
    if (operation->work) {
      run_work(lock, *stream, *operation->work);
    } else {
      stream->previous = {};
    }
    stream->queue.pop_front();
    finish(*operation);
  }
}

// Driver API 5, "Stream synchronization behavior": the legacy stream and blocking streams wait for each other.
void add_legacy_order(const Stream& stream, std::vector<std::shared_ptr<Operation>>& after) {
  const Context& context = *stream.context;
  auto add = [&](const Stream& other) {
    if (other.last && !other.last->done) after.push_back(other.last);
  };
  if (&stream == context.null_stream.get()) {
    for (const auto& other : streams_of(context)) {
      if (other.get() != &stream && other->blocking()) add(*other);
    }
    for (const auto& [operation, blocking] : context.leaving) {
      if (blocking && !operation->done) after.push_back(operation);
    }
  } else if (stream.blocking()) {
    add(*context.null_stream);
  }
}

}  // namespace

std::shared_ptr<Stream> make_stream(const std::shared_ptr<Context>& context, unsigned flags, int priority, bool implicit) {
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = state().next_id++;
  stream->implicit = implicit;
  state().streams.add(stream);
  return stream;
}

std::shared_ptr<Stream> stream_of(const std::shared_ptr<Context>& context, CUstream handle) {
  if (!handle || handle == CU_STREAM_LEGACY) return context->null_stream;
  if (handle == CU_STREAM_PER_THREAD) {
    auto& stream = context->thread_streams[std::this_thread::get_id()];
    if (!stream) stream = make_stream(context, CU_STREAM_DEFAULT, 0, true);
    return stream;
  }
  auto stream = state().streams.get(handle);
  stream->context->check();
  return stream;
}

std::shared_ptr<Operation> enqueue(const std::shared_ptr<Stream>& stream, std::shared_ptr<const Work> work,
                                   std::vector<std::shared_ptr<Operation>> after) {
  auto operation = std::make_shared<Operation>();
  operation->work = std::move(work);
  operation->after = std::move(after);
  add_legacy_order(*stream, operation->after);
  stream->last = operation;
  if (!operation->work && stream->queue.empty() && all_done(operation->after)) {  // a point in an idle stream is passed at once
    stream->previous = {};
    finish(*operation);
    return operation;
  }
  stream->queue.push_back(operation);
  if (!stream->has_thread) {
    stream->has_thread = true;
    std::thread(serve, stream).detach();  // never joined: a kernel that hangs must not keep the process from ending
  }
  stream->arrival.notify_one();
  return operation;
}

std::shared_ptr<Operation> submit(const std::shared_ptr<Stream>& stream, std::shared_ptr<const Work> work,
                                  std::vector<std::shared_ptr<Operation>> after) {
  if (stream->capture) {
    capture_work(*stream, std::move(work));
    return nullptr;
  }
  if (stream == stream->context->null_stream) refuse_implicit_dependency(*stream->context);
  return enqueue(stream, std::move(work), std::move(after));
}

void run_now(Lock& lock, std::shared_ptr<const Work> work) {
  const auto context = working_context();
  const auto operation = submit(context->null_stream, std::move(work));
  wait_for_operation(lock, operation);
  context->check();
}

void close_stream(Stream& stream) {
  stream.closed = true;
  stream.arrival.notify_one();
  state().streams.remove(stream.handle);
  auto& leaving = stream.context->leaving;
  std::erase_if(leaving, [](const LastOfStream& last) { return last.operation->done; });
  if (stream.last && !stream.last->done) leaving.push_back({stream.last, stream.blocking()});
}

std::vector<std::shared_ptr<Stream>> streams_of(const Context& context) {
  return state().streams.select([&](const Stream& stream) { return stream.context.get() == &context; });
}

void wait_for_operation(Lock& lock, const std::shared_ptr<Operation>& operation) {
  if (operation) wait_until(lock, [&] { return operation->done; });
}

void wait_for_context(Lock& lock, const Context& context) {
  std::vector<std::shared_ptr<Operation>> last;  // to look at the lists while the lock is held
  for (const auto& stream : streams_of(context)) last.push_back(stream->last);
  for (const auto& left : context.leaving) last.push_back(left.operation);
  for (const auto& operation : last) wait_for_operation(lock, operation);
}

}  // namespace emu::driver
