// Clusters of two blocks of 64 threads: PTX ISA 9.7.9.23 (mapa), 9.7.13.4 (barrier.cluster), distributed shared memory.

__device__ inline u32 global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

// ---- exchange: each block reads and writes the other's shared memory
KERNEL exchange(const u32* in, u32* out) {
  __shared__ u32 values[64], inbox[64];
  u32 t = threadIdx.x, rank = cluster_rank(), got;
  values[t] = in[global_thread()];
  cluster_sync();
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(got) : "r"(map_shared(shared_address(&values[63 - t]), rank ^ 1)) : "memory");
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(map_shared(shared_address(&inbox[t ^ 5]), rank ^ 1)), "r"(got + rank)
               : "memory");
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
  out[global_thread()] = inbox[t];
}

// ---- generic_exchange: the same through generic addresses, 64 and 128 bits wide
KERNEL generic_exchange(const u32* in, u32* out) {
  __shared__ uint4 values[64];
  u32 t = threadIdx.x, rank = cluster_rank();
  values[t] = make_uint4(in[global_thread()], t, rank, 7);
  cluster_sync();
  u64 mapped;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(&values[63 - t]), "r"(rank ^ 1));
  uint4 got = *reinterpret_cast<const uint4*>(mapped);
  cluster_sync();
  out[global_thread()] = got.x + got.y * 1000 + got.z * 100000 + got.w;
}

// ---- atomics: both blocks count in the shared memory of block 0
KERNEL atomics(const u32* in, u32* out) {
  __shared__ u32 total, biggest;
  u32 t = threadIdx.x, value = in[global_thread()], old;
  if (t == 0) total = 0, biggest = 0;
  cluster_sync();
  u32 first = map_shared(shared_address(&total), 0), second = map_shared(shared_address(&biggest), 0);
  asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(first), "r"(value) : "memory");
  asm volatile("red.relaxed.cluster.shared::cluster.max.u32 [%0], %1;" ::"r"(second), "r"(value) : "memory");
  cluster_sync();
  out[global_thread()] = cluster_rank() == 0 ? total + biggest : total;
  if (old == 0xffffffff) out[0] = 1;
}

// ---- ranks: where a block is, and whose an address is
KERNEL ranks(const u32* in, u32* out) {
  __shared__ u32 mine;
  u32 rank = cluster_rank(), size, cluster, clusters, x, width, owner, explicit_cluster, own;
  u64 generic_owner_address;
  u32 generic_owner;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters));
  asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(x));
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(width));
  asm volatile("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(explicit_cluster));
  u32 address = shared_address(&mine);
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(owner) : "r"(map_shared(address, rank ^ 1)));
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(own) : "r"(address));
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic_owner_address) : "l"(&mine), "r"(rank ^ 1));
  asm volatile("getctarank.u64 %0, %1;" : "=r"(generic_owner) : "l"(generic_owner_address));
  u32 inside, cta;
  asm volatile("{ .reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(inside) : "l"(generic_owner_address));
  asm volatile("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(cta) : "l"(generic_owner_address));
  u32* row = out + blockIdx.x * 12;
  if (threadIdx.x == 0) {
    u32 found[12] = {rank, size, cluster, clusters, x, width, explicit_cluster, owner, own, generic_owner, inside, cta};
    for (u32 i = 0; i < 12; ++i) row[i] = found[i];
  }
  if (in[0] == 1) mine = 0;
  cluster_sync();
}

// ---- remote_arrive: threads of one block arrive at the other's mbarrier
KERNEL remote_arrive(const u32* in, u32* out) {
  __shared__ u64 barrier;
  __shared__ u32 inbox[64];
  u32 t = threadIdx.x, other = cluster_rank() ^ 1;
  if (t == 0) {
    mbarrier_init(&barrier, 64);
    mbarrier_init_fence();
  }
  cluster_sync();
  u32 place = map_shared(shared_address(&inbox[63 - t]), other), remote = map_shared(shared_address(&barrier), other);
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(place), "r"(in[global_thread()]) : "memory");
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
  u32 done = 0;
  for (u32 attempt = 0; attempt < 20000 && !done; ++attempt)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(&barrier))
        : "memory");
  if (!done) asm volatile("trap;");
  out[global_thread()] = inbox[t];
  cluster_sync();
}

// ---- store_async: st.async into the other block, completing bytes on its mbarrier
KERNEL store_async(const u32* in, u32* out) {
  __shared__ u64 barrier;
  __shared__ __align__(16) u32 inbox[64 * 7];
  u32 t = threadIdx.x, other = cluster_rank() ^ 1;
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_init_fence();
    mbarrier_expect(&barrier, 64 * 28);
  }
  cluster_sync();
  u32 value = in[global_thread()], remote = map_shared(shared_address(&barrier), other);
  auto place = [&](u32 index) { return map_shared(shared_address(&inbox[index]), other); };
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(place(t * 4)),
               "r"(value), "r"(value + 1), "r"(value + 2), "r"(value + 3), "r"(remote)
               : "memory");
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(place(256 + t * 2)),
               "l"(u64(value) * 3), "r"(remote)
               : "memory");
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(place(384 + t)), "r"(~value),
               "r"(remote)
               : "memory");
  mbarrier_wait(&barrier, 0);
  u32 hash = 0;
  for (u32 i = 0; i < 4; ++i) hash = hash * 31 + inbox[t * 4 + i];
  for (u32 i = 0; i < 2; ++i) hash = hash * 31 + inbox[256 + t * 2 + i];
  out[global_thread()] = hash * 31 + inbox[384 + t];
  cluster_sync();
}

// ---- reduce_async: red.async of every operation, eight threads a cell
KERNEL reduce_async(const u32* in, u32* out) {
  __shared__ u64 barrier;
  __shared__ __align__(16) u32 cells[12][8];
  __shared__ __align__(16) u64 wide[8];
  u32 t = threadIdx.x, other = cluster_rank() ^ 1;
  for (u32 i = t; i < 96; i += 64) cells[i / 8][i % 8] = 0x00ff0f30 + i;
  if (t < 8) wide[t] = 0xffffffff00000000ull;
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_init_fence();
    mbarrier_expect(&barrier, 64 * (10 * 4 + 8));
  }
  cluster_sync();
  u32 value = in[global_thread()], remote = map_shared(shared_address(&barrier), other), n = 0;
  auto place = [&](u32 row) { return map_shared(shared_address(&cells[row][t % 8]), other); };
#define REDUCE(operation, operand)                                                                                        \
  asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes." operation " [%0], %1, [%2];" ::"r"( \
                   place(n++)),                                                                                           \
               "r"(operand), "r"(remote)                                                                                  \
               : "memory")
  REDUCE("add.u32", value);
  REDUCE("add.s32", value);
  REDUCE("min.u32", value);
  REDUCE("max.u32", value);
  REDUCE("min.s32", value);
  REDUCE("max.s32", value);
  REDUCE("and.b32", value | 0xff000000);
  REDUCE("or.b32", value & 0xf0f);
  REDUCE("xor.b32", value);
  REDUCE("inc.u32", 0x00ff0f90u);
#undef REDUCE
  asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64 [%0], %1, [%2];" ::"r"(
                   map_shared(shared_address(&wide[t % 8]), other)),
               "l"(u64(value)), "r"(remote)
               : "memory");
  mbarrier_wait(&barrier, 0);
  u32* row = out + blockIdx.x * 112;
  for (u32 i = t; i < 96; i += 64) row[i] = cells[i / 8][i % 8];
  if (t < 8) {
    row[96 + t * 2] = u32(wide[t]);
    row[97 + t * 2] = u32(wide[t] >> 32);
  }
  cluster_sync();
}

// ---- deferred: arrive and wait apart, relaxed and not aligned
KERNEL deferred(const u32* in, u32* out) {
  __shared__ u32 values[64];
  u32 t = threadIdx.x, rank = cluster_rank(), got;
  values[t] = in[global_thread()];
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  u32 own = in[global_thread() ^ 1];
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(got) : "r"(map_shared(shared_address(&values[t]), rank ^ 1)) : "memory");
  out[global_thread()] = got ^ own;
  asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
}
