// cp.async.bulk and cp.reduce.async.bulk: PTX ISA 9.7.9.25.4. Blocks of 64 threads.

__device__ inline void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

__device__ inline void bulk_finish() {
  bulk_commit();
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- load: global to shared memory, in two pieces on one mbarrier
KERNEL load(const u32* in, u32* out) {
  __shared__ __align__(128) u32 tile[1024];
  __shared__ u64 barrier;
  u32 t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (t == 0) {
    mbarrier_expect(&barrier, 4096);
    bulk_load(tile, in, 1008, &barrier);
    bulk_load(tile + 252, in + 252, 4096 - 1008, &barrier);
  }
  mbarrier_wait(&barrier, 0);
  for (u32 i = t; i < 1024; i += 64) out[i] = tile[1023 - i];
}

// ---- load_cta: the destination as shared::cta, with a policy for the cache, after a prefetch
KERNEL load_cta(const u32* in, u32* out) {
  __shared__ __align__(128) u32 tile[1024];
  __shared__ u64 barrier;
  u32 t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_init_fence();
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], 4096;" ::"l"(in) : "memory");
    mbarrier_expect(&barrier, 4096);
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], 4096, [%2], %3;" ::"r"(
                     shared_address(tile)),
                 "l"(in), "r"(shared_address(&barrier)), "l"(policy)
                 : "memory");
  }
  __syncthreads();
  mbarrier_wait(&barrier, 0);
  for (u32 i = t; i < 1024; i += 64) out[i] = tile[i] + 1;
}

// ---- store: shared to global memory; the second wait is for reads only, after which the tile is written again
KERNEL store(const u32* in, u32* out) {
  __shared__ __align__(128) u32 tile[512];
  u32 t = threadIdx.x;
  for (u32 half = 0; half < 2; ++half) {
    for (u32 i = t; i < 512; i += 64) tile[i] = in[half * 512 + i] ^ half;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 2048;" ::"l"(out + half * 512), "r"(shared_address(tile))
                   : "memory");
      bulk_commit();
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncthreads();
  }
  if (t == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- groups: two stores in flight, waited for one by one
KERNEL groups(const u32* in, u32* out) {
  __shared__ __align__(128) u32 tile[1024];
  u32 t = threadIdx.x;
  for (u32 i = t; i < 1024; i += 64) tile[i] = in[i] * 3;
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    for (u32 part = 0; part < 4; ++part) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out + (3 - part) * 256),
                   "r"(shared_address(tile + part * 256))
                   : "memory");
      bulk_commit();
      if (part >= 1) asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// ---- to_neighbour: from one block's shared memory to the other's, on the other's mbarrier
KERNEL to_neighbour(const u32* in, u32* out) {
  __shared__ __align__(128) u32 tile[512], inbox[512];
  __shared__ u64 barrier;
  u32 t = threadIdx.x, rank = cluster_rank();
  for (u32 i = t; i < 512; i += 64) tile[i] = in[rank * 512 + i];
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_init_fence();
    mbarrier_expect(&barrier, 2048);
  }
  fence_proxy_async();
  cluster_sync();
  if (t == 0)
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 2048, [%2];" ::"r"(
                     map_shared(shared_address(inbox), rank ^ 1)),
                 "r"(shared_address(tile)), "r"(map_shared(shared_address(&barrier), rank ^ 1))
                 : "memory");
  mbarrier_wait(&barrier, 0);
  for (u32 i = t; i < 512; i += 64) out[rank * 512 + i] = inbox[511 - i];
  cluster_sync();
}

// ---- multicast: block 0 loads into both blocks
KERNEL multicast(const u32* in, u32* out) {
  __shared__ __align__(128) u32 tile[512];
  __shared__ u64 barrier;
  u32 t = threadIdx.x, rank = cluster_rank();
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_init_fence();
    mbarrier_expect(&barrier, 2048);
  }
  cluster_sync();
  if (t == 0 && rank == 0)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 2048, [%2], %3;" ::"r"(
            shared_address(tile)),
        "l"(in), "r"(shared_address(&barrier)), "h"(u16(3))
        : "memory");
  mbarrier_wait(&barrier, 0);
  for (u32 i = t; i < 512; i += 64) out[rank * 512 + i] = tile[i] + rank;
  cluster_sync();
}

// ---- reduce_shared: cp.reduce.async.bulk into the other block's shared memory, every operation
KERNEL reduce_shared(const u32* in, u32* out) {
  __shared__ __align__(128) u32 tile[64], cells[9][64];
  __shared__ __align__(128) u64 wide_tile[32], wide[32];
  __shared__ u64 barrier;
  u32 t = threadIdx.x, rank = cluster_rank(), other = rank ^ 1;
  tile[t] = in[rank * 64 + t];
  for (u32 row = 0; row < 9; ++row) cells[row][t] = 0x40000000 + row * 64 + t;
  if (t < 32) {
    wide_tile[t] = u64(in[rank * 64 + t]) << 8;
    wide[t] = 0xfffffff0ull + t;
  }
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_init_fence();
    mbarrier_expect(&barrier, 10 * 256);
  }
  fence_proxy_async();
  cluster_sync();
  if (t == 0) {
    u32 row = 0, remote = map_shared(shared_address(&barrier), other);
#define REDUCE(operation)                                                                                          \
  asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes." operation          \
               " [%0], [%1], 256, [%2];" ::"r"(map_shared(shared_address(cells[row++]), other)),                   \
               "r"(shared_address(tile)), "r"(remote)                                                              \
               : "memory")
    REDUCE("add.u32");
    REDUCE("add.s32");
    REDUCE("min.u32");
    REDUCE("max.s32");
    REDUCE("inc.u32");
    REDUCE("dec.u32");
    REDUCE("and.b32");
    REDUCE("or.b32");
    REDUCE("xor.b32");
#undef REDUCE
    asm volatile(
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u64 [%0], [%1], 256, [%2];" ::"r"(
            map_shared(shared_address(wide), other)),
        "r"(shared_address(wide_tile)), "r"(remote)
        : "memory");
  }
  mbarrier_wait(&barrier, 0);
  u32* row = out + rank * 640;
  for (u32 i = 0; i < 9; ++i) row[i * 64 + t] = cells[i][t];
  row[576 + t] = reinterpret_cast<const u32*>(wide)[t];
  cluster_sync();
}
