// The ready queue: see scheduler.h.
#include "scheduler.h"

#include <algorithm>
#include <mutex>

#include "async.h"
#include "settings.h"
#include "shadow.h"
#include "warp.h"

namespace emu {
namespace {

[[gnu::tls_model("initial-exec")]] thread_local Thread* t_current = nullptr;

// Thrown where an operation fails that lands between fibers, on the launch's own stack.
struct Abandoned {};

std::mutex pool_mutex;  // guards what follows
auto& idle_workers = *new std::vector<Worker*>;  // never destroyed: a launch may outlive main
size_t num_workers = 0;

Worker& hire() {
  std::lock_guard lock(pool_mutex);
  if (!idle_workers.empty()) {
    Worker* w = idle_workers.back();
    idle_workers.pop_back();
    return *w;
  }
  if (num_workers == Shadow::kWindows) {
    fprintf(stderr, "emucuda: more than %zu launches at a time\n", Shadow::kWindows);
    abort();
  }
  return *new Worker(num_workers++);
}

}  // namespace

constinit thread_local Worker* t_worker = nullptr;

Worker::Worker(size_t index) : window(shadow().window(index)) {}

Thread* current() { return t_current; }

Employment::Employment() : worker(hire()) { t_worker = &worker; }

Employment::~Employment() {
  t_worker = nullptr;
  std::lock_guard lock(pool_mutex);
  idle_workers.push_back(&worker);
}

Thread& Worker::thread(uint32_t index) {
  while (threads.size() <= index) {
    threads.push_back(std::make_unique<Thread>());
    threads.back()->fiber.allocate();
  }
  return *threads[index];
}

void Worker::make_ready(Thread& t) {
  t.state = State::kReady;
  ready.push_back(&t);
}

Thread* Worker::choose() {
  if (ready.empty() && !converging.empty()) {
    end_convergence(*converging.front());
    converging.pop_front();
  }
  if (ready.empty()) {  // who polls runs when nobody else can
    if (polling.empty()) return nullptr;
    Thread* t = polling.front();
    polling.pop_front();
    return t;
  }
  switch (settings().schedule) {
    case Schedule::kForward: break;
    case Schedule::kReverse: std::swap(ready.front(), ready.back()); break;
    case Schedule::kRandom: std::swap(ready.front(), ready[next_random() % ready.size()]); break;
  }
  Thread* t = ready.front();
  ready.pop_front();
  return t;
}

void Worker::switch_to(Thread* next) {
  Thread* me = t_current;
  if (me == next && me) return;
  t_current = next;
  emu_switch(me ? &me->fiber.stack_pointer : &main_stack_pointer, next ? next->fiber.stack_pointer : main_stack_pointer);
  t_current = me;
}

void Worker::enter() {
  for (;;) {
    Thread& self = *t_current;
    acquire(self, self.cluster->start);
    self.cluster->launch->kernel->run(&self, self.cluster->launch->params);
    t_worker->finish(self);
    t_worker->switch_to(t_worker->choose());
  }
}

void Worker::finish(Thread& t) {
  if (t.bulk && !t.bulk->idle()) {
    fail(t, 0, "a thread has returned while bulk stores that it issued may still read shared memory: cp.async.bulk.wait_group is missing");
  }
  t.state = State::kDone;
  --cluster->live;
  --t.block->live;
  Warp& warp = t.block->warps[t.warp];
  if (--warp.live == 0 && warp.wgmma && !warp.wgmma->idle()) {
    fail(t, 0, "a warp has returned while its wgmma operations were on their way: wgmma.wait_group is missing");
  }
  leave_meetings(t);
  leave_barriers(t);
  leave_cluster_barrier(t);
  if (t.block->live == 0) end_block(*t.block);
}

void Worker::run() {
  for (uint32_t i = 0; i < cluster->threads.size(); ++i) {
    cluster->threads[i]->fiber.prepare(&Worker::enter);
    make_ready(*cluster->threads[i]);
  }
  const std::string kernel = "kernel " + std::string(cluster->launch->kernel->name) + ": ";
  while (cluster->live && !failure.error) {
    if (Thread* next = choose()) {
      switch_to(next);
    } else if (!land_one() && !time_out_waits(*cluster)) {
      failure.error = kLaunchFailed;
      failure.message = kernel + deadlock();
    }
  }
  if (!failure.error && !cluster->engine->idle()) {
    failure.error = kLaunchFailed;
    failure.message = kernel + "every thread has returned while asynchronous copies were on their way: nobody waited for their mbarrier";
  }
  ready.clear();
  polling.clear();
  converging.clear();
}

bool Worker::land_one() {
  try {
    return cluster->engine->land_one();
  } catch (const Abandoned&) {
    return true;
  }
}

void Worker::abandon(int error, std::string message) {
  failure.error = error;
  failure.message = std::move(message);
  if (!t_current) throw Abandoned();
  t_current->state = State::kWaiting;
  switch_to(nullptr);
  abort();
}

std::string Worker::deadlock() const {
  constexpr int kShown = 4;
  std::string report = printf_string("deadlock: %u of %zu threads wait for ever, the others have returned", cluster->live,
                                     cluster->threads.size());
  int shown = 0;
  for (const Thread* t : cluster->threads) {
    if (t->state != State::kWaiting || shown == kShown) continue;
    ++shown;
    report += printf_string("; thread (%u,%u,%u) of block (%u,%u,%u) waits at %s for ", t->tid.x, t->tid.y, t->tid.z, t->ctaid.x, t->ctaid.y,
                            t->ctaid.z, place(*cluster->launch->module, t->location).c_str());
    report += t->waits_for();
  }
  return report;
}

void suspend(Thread& self, WaitList& list, Describe waits_for, uint32_t location) {
  self.state = State::kWaiting;
  self.waits_for = std::move(waits_for);
  self.location = location;
  list.threads.push_back(&self);
  t_worker->switch_to(t_worker->choose());
}

void wake_all(Cluster&, WaitList& list) {
  for (Thread* t : list.threads) t_worker->make_ready(*t);
  list.threads.clear();
}

void yield(Thread& self) {
  if (t_worker->ready.empty() && self.cluster->engine->land_one()) return;
  if (t_worker->ready.empty() && t_worker->polling.empty() && t_worker->converging.empty()) return;
  t_worker->polling.push_back(&self);
  t_worker->switch_to(t_worker->choose());
}

}  // namespace emu

extern "C" void emu_yield(EmuThread* t) { emu::yield(emu::thread_of(t)); }
