// Runs the fibers of one cluster at a time: the ready queue, and what a launch has in its hands.
#pragma once

#include <string>

#include "core.h"
#include "order.h"

namespace emu {

// Everything that runs one grid; taken from a pool for a launch and given back.
struct Worker {
  explicit Worker(size_t index);

  char* window;                          // shared memory of the cluster's blocks
  std::vector<std::unique_ptr<Thread>> threads;  // their stacks are used again for every cluster
  std::deque<Thread*> ready;
  std::deque<Thread*> polling;           // could run, but look at memory in a loop
  std::deque<Warp*> converging;          // with lanes at activemask, which go on once no other lane can come
  Cluster* cluster = nullptr;
  void* main_stack_pointer = nullptr;
  AtomicPoints atomics;                  // of the grid
  uint64_t random = 1;
  LaunchResult failure;                  // error 0: none

  Thread& thread(uint32_t index);        // made when first asked for
  void make_ready(Thread&);
  void run();                            // until every thread has returned, or one has failed
  [[noreturn]] void abandon(int error, std::string message);  // nothing of the cluster runs again
  uint64_t next_random() {               // xorshift64
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }

 private:
  Thread* choose();
  bool land_one();                       // an operation of the asynchronous engine, on the launch's own stack
  [[noreturn]] static void enter();      // where every fiber begins
  void switch_to(Thread*);               // null: back to run()
  std::string deadlock() const;
  void finish(Thread&);                  // it has returned
  friend void suspend(Thread&, WaitList&, Describe, uint32_t);
  friend void yield(Thread&);
};

// Every switch between threads reads it: without the model each read would be a call.
[[gnu::visibility("hidden"), gnu::tls_model("initial-exec")]] extern constinit thread_local Worker* t_worker;

inline Worker& worker() { return *t_worker; }  // of the calling fiber or launch
Thread* current();     // null outside of fibers

// Takes a worker from the pool, for the duration of a launch.
class Employment {
 public:
  Employment();
  ~Employment();
  Employment(const Employment&) = delete;
  Employment& operator=(const Employment&) = delete;
  Worker& worker;
};

// When a thread, or the last thread of a block, returns (barrier.cpp, grid.cpp).
void leave_barriers(Thread&);
void leave_cluster_barrier(Thread&);
void end_block(Block&);

// When nothing can run: lets mbarrier.try_wait of some threads come back in vain (mbarrier.cpp). False: there are none.
bool time_out_waits(Cluster&);

}  // namespace emu
