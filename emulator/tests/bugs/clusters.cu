// Seeded bugs of clusters and of dependent launches. Clusters of two blocks. With bug == 0 every kernel is right.
#include <cooperative_groups.h>
#include <cstdint>

namespace cg = cooperative_groups;

extern "C" __global__ void __cluster_dims__(2, 1, 1) neighbour_not_waited_for(float* y, int bug) {
  __shared__ float mine[32];
  auto cluster = cg::this_cluster();
  mine[threadIdx.x] = static_cast<float>(blockIdx.x);
  if (!bug) cluster.sync();
  const float* theirs = cluster.map_shared_rank(mine, cluster.block_rank() ^ 1);
  y[blockIdx.x * 32 + threadIdx.x] = theirs[threadIdx.x];
  cluster.sync();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) neighbour_has_exited(float* y, int bug) {
  __shared__ float mine[32];
  auto cluster = cg::this_cluster();
  mine[threadIdx.x] = static_cast<float>(blockIdx.x);
  cluster.sync();
  const float* theirs = cluster.map_shared_rank(mine, cluster.block_rank() ^ 1);
  if (bug && cluster.block_rank() == 0) return;
  if (bug) __nanosleep(1000);
  y[blockIdx.x * 32 + threadIdx.x] = theirs[threadIdx.x];
  if (!bug) cluster.sync();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) block_that_is_not_there(float* y, int bug) {
  __shared__ float mine[32];
  auto cluster = cg::this_cluster();
  mine[threadIdx.x] = 1.f;
  cluster.sync();
  uint32_t theirs;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(theirs) : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(&mine[threadIdx.x]))), "r"(bug ? 2 : 1));
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(theirs) : "memory");
  y[blockIdx.x * 32 + threadIdx.x] = v;
  cluster.sync();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) arrive_twice(float* y, int bug) {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  if (bug) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  y[blockIdx.x * 32 + threadIdx.x] = 1.f;
}

extern "C" __global__ void produce(float* x) {
  asm volatile("griddepcontrol.launch_dependents;");
  x[threadIdx.x] = 5.f;
}

// Launched with programmatic stream serialisation behind `produce`.
extern "C" __global__ void consume(const float* x, float* y, int bug) {
  if (!bug) asm volatile("griddepcontrol.wait;" ::: "memory");
  y[threadIdx.x] = x[threadIdx.x];
}
