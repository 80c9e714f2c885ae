// mbarrier: PTX ISA 9.7.13.15. States are opaque: only what may be asked of them goes out.

__device__ inline u32 test(u64* barrier, u64 state) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(shared_address(barrier)), "l"(state)
               : "memory");
  return done;
}

__device__ inline u32 test_parity(u64* barrier, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done;
}

__device__ inline u32 pending(u64 state) {
  u32 count;
  asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(state));
  return count;
}

// ---- phases: one thread walks through arrivals, phases and their parities
KERNEL phases(const u32* in, u32* out) {
  __shared__ u64 barrier;
  mbarrier_init(&barrier, 3);
  u32 n = 0;
  out[n++] = test_parity(&barrier, 0);
  out[n++] = test_parity(&barrier, 1);
  u64 first = mbarrier_arrive(&barrier);
  out[n++] = pending(first);
  u64 second = mbarrier_arrive(&barrier);
  out[n++] = pending(second);
  out[n++] = test(&barrier, first);
  u64 third = mbarrier_arrive(&barrier);
  out[n++] = pending(third);
  out[n++] = test(&barrier, first);
  out[n++] = test(&barrier, third);
  out[n++] = test_parity(&barrier, 0);
  out[n++] = test_parity(&barrier, 1);
  u64 state;
  u32 address = shared_address(&barrier);
  asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 1;" : "=l"(state) : "r"(address) : "memory");
  out[n++] = pending(state);
  out[n++] = test(&barrier, state);
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;" : "=l"(state) : "r"(address) : "memory");
  out[n++] = pending(state);
  out[n++] = test(&barrier, state);
  out[n++] = test_parity(&barrier, 1);
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
  out[n++] = in[0];
}

// ---- dropping: arrive_drop lowers the count of the phases to come
KERNEL dropping(const u32* in, u32* out) {
  __shared__ u64 barrier;
  mbarrier_init(&barrier, 4);
  u32 address = shared_address(&barrier), n = 0;
  u64 state;
  asm volatile("mbarrier.arrive_drop.noComplete.shared::cta.b64 %0, [%1], 1;" : "=l"(state) : "r"(address) : "memory");
  out[n++] = pending(state);
  asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(address) : "memory");
  out[n++] = pending(state);
  mbarrier_arrive(&barrier);
  mbarrier_arrive(&barrier);
  out[n++] = test(&barrier, state);
  u64 next = mbarrier_arrive(&barrier);
  out[n++] = pending(next);
  out[n++] = test(&barrier, next);
  mbarrier_arrive(&barrier);
  out[n++] = test(&barrier, next);
  out[n++] = in[0];
}

// ---- transactions: expect_tx and complete_tx hold a phase open
KERNEL transactions(const u32* in, u32* out) {
  __shared__ u64 barrier;
  mbarrier_init(&barrier, 1);
  u32 address = shared_address(&barrier), n = 0;
  u64 state;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], 96;" : "=l"(state) : "r"(address) : "memory");
  out[n++] = test(&barrier, state);
  asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%0], 32;" ::"r"(address) : "memory");
  out[n++] = test(&barrier, state);
  asm volatile("mbarrier.complete_tx.shared::cta.b64 [%0], 64;" ::"r"(address) : "memory");
  out[n++] = test(&barrier, state);
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(address) : "memory");
  mbarrier_init(&barrier, 2);
  asm volatile("mbarrier.arrive_drop.expect_tx.shared::cta.b64 %0, [%1], 8;" : "=l"(state) : "r"(address) : "memory");
  mbarrier_arrive(&barrier);
  out[n++] = test(&barrier, state);
  asm volatile("mbarrier.complete_tx.shared::cta.b64 [%0], 8;" ::"r"(address) : "memory");
  out[n++] = test(&barrier, state);
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(address) : "memory");
  state = mbarrier_arrive(&barrier);
  out[n++] = test_parity(&barrier, 1);
  asm volatile("mbarrier.complete_tx.shared::cta.b64 [%0], 16;" ::"r"(address) : "memory");
  out[n++] = test_parity(&barrier, 1);
  out[n++] = in[0];
}

// ---- rounds: 128 threads write, arrive and read, eight phases long, through try_wait with parity
KERNEL rounds(const u32* in, u32* out) {
  __shared__ u64 barrier;
  __shared__ u32 values[2][128];
  u32 t = threadIdx.x, sum = in[t];
  if (t == 0) mbarrier_init(&barrier, 128);
  __syncthreads();
  for (u32 round = 0; round < 8; ++round) {
    values[round % 2][t] = sum;
    mbarrier_arrive(&barrier);
    mbarrier_wait(&barrier, round % 2);
    sum += values[round % 2][(t + 33) % 128];
  }
  out[t] = sum;
}

// ---- states: try_wait with a state and a time limit, release and acquire spelled out
KERNEL states(const u32* in, u32* out) {
  __shared__ u64 barrier;
  __shared__ u32 values[128];
  u32 t = threadIdx.x;
  if (t == 0) mbarrier_init(&barrier, 128);
  __syncthreads();
  values[t] = in[t];
  u64 state;
  u32 address = shared_address(&barrier), done = 0;
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(address) : "memory");
  for (u32 attempt = 0; attempt < 20000 && !done; ++attempt)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.acquire.cta.shared::cta.b64 p, [%1], %2, 1000; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(address), "l"(state)
                 : "memory");
  if (!done) asm volatile("trap;");
  out[t] = values[127 - t];
}

// ---- generic: the same through generic addresses
KERNEL generic(const u32* in, u32* out) {
  __shared__ u64 barrier;
  u64 state;
  u32 done;
  asm volatile("mbarrier.init.b64 [%0], 1;" ::"l"(&barrier) : "memory");
  asm volatile("mbarrier.arrive.b64 %0, [%1];" : "=l"(state) : "l"(&barrier) : "memory");
  asm volatile("{ .reg .pred p; mbarrier.test_wait.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "l"(&barrier), "l"(state)
               : "memory");
  out[0] = done + in[0];
}
