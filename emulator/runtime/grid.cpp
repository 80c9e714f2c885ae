// Running a grid: cluster after cluster, each with fresh shared memory.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "async.h"
#include "mbarrier.h"
#include "scheduler.h"
#include "settings.h"
#include "shadow.h"
#include "warp.h"

namespace emu {
namespace {

constexpr int kMaxDevices = 64;
constexpr uint32_t kPoison = 0xff;  // what shared memory holds before it is written

std::mutex device_mutex[kMaxDevices];  // grids of one device run one after the other
std::mutex number_mutex;               // guards next_number
uint32_t next_number = 1;

// A range of numbers, so that "written by this grid" is a comparison.
uint32_t take_numbers(uint32_t count) {
  std::lock_guard lock(number_mutex);
  const uint32_t first = next_number;
  next_number += count;
  return first;
}

EmuDim at(uint64_t index, const EmuDim& size) {
  return {static_cast<uint32_t>(index % size.x), static_cast<uint32_t>(index / size.x % size.y),
          static_cast<uint32_t>(index / (static_cast<uint64_t>(size.x) * size.y))};
}

uint64_t volume(const EmuDim& d) { return static_cast<uint64_t>(d.x) * d.y * d.z; }

uint32_t dynamic_offset(const EmuKernel& kernel) {
  const uint32_t alignment = std::max(16u, kernel.dynamic_alignment), end = std::max(kernel.shared_end, kEmuSharedReserved);
  return (end + alignment - 1) / alignment * alignment;
}

// Poison and, for the checker, just the variables that the kernel has.
void lay_out_shared(const Cluster& cluster, char* window) {
  const EmuKernel& kernel = *cluster.launch->kernel;
  const uint32_t dynamic = dynamic_offset(kernel), end = dynamic + cluster.launch->dynamic_shared;
  memset(window, kPoison, end);
  if (!cluster.checked()) return;
  Shadow& s = shadow();
  const size_t base = s.offset(window), cleared = (end + 255) & ~size_t{255};
  s.mark_valid(base, cleared, false);
  s.mark_defined(base, cleared, false);
  for (uint32_t i = 0; i < kernel.num_shared; ++i) {
    // A variable may begin in the middle of 8 bytes: then those before it are its neighbour's tail, which is valid too, or padding.
    const uint32_t first = kernel.shared[i].offset & ~7u;
    s.mark_valid(base + first, kernel.shared[i].offset + kernel.shared[i].bytes - first, true);
  }
  s.mark_valid(base + dynamic, cluster.launch->dynamic_shared, true);
}

void set_up_thread(Thread& t, Cluster& cluster, Block& block, const EmuDim& block_id, uint32_t linear) {
  const LaunchConfig& launch = *cluster.launch;
  static_cast<EmuThread&>(t) = EmuThread();
  t.tid = at(linear, launch.block);
  t.ntid = launch.block;
  t.ctaid = block_id;
  t.nctaid = launch.grid;
  t.nclusterid = {launch.grid.x / launch.cluster.x, launch.grid.y / launch.cluster.y, launch.grid.z / launch.cluster.z};
  t.clusterid = {block_id.x / launch.cluster.x, block_id.y / launch.cluster.y, block_id.z / launch.cluster.z};
  t.cluster_ctaid = {block_id.x % launch.cluster.x, block_id.y % launch.cluster.y, block_id.z % launch.cluster.z};
  t.cluster_nctaid = launch.cluster;
  t.cluster_ctarank = block.rank;
  t.cluster_nctarank = static_cast<uint32_t>(cluster.blocks.size());
  t.lane = linear % 32;
  t.warp = linear / 32;
  t.linear = linear;
  t.smid = static_cast<uint32_t>(block.number % 132);
  t.device = static_cast<uint32_t>(launch.device);
  t.gridid = launch.grid_id;
  t.shared = cluster.window;
  t.shared_base = block.window();
  t.dynamic_shared = block.window() + dynamic_offset(*launch.kernel);
  t.dynamic_bytes = launch.dynamic_shared;
  t.globals = launch.globals;
  t.block = &block;
  t.cluster = &cluster;
  t.slot = block.first + linear;
  t.state = State::kReady;
  t.knowledge.clear();
  t.fenced.clear();
  t.acquirable.clear();
  t.in_cluster_barrier = false;
  t.timeouts = 0;
  t.timed_out = false;
  t.cp_async.reset();
  t.bulk.reset();
  t.knowledge.seen.raise(t.slot, 1);
}

void set_up_cluster(Cluster& cluster, Worker& w, const LaunchConfig& launch, uint64_t index) {
  const uint32_t num_blocks = static_cast<uint32_t>(volume(launch.cluster)), num_threads = static_cast<uint32_t>(volume(launch.block));
  const EmuDim grid_of_clusters{launch.grid.x / launch.cluster.x, launch.grid.y / launch.cluster.y, launch.grid.z / launch.cluster.z};
  const EmuDim id = at(index, grid_of_clusters);
  cluster.launch = &launch;
  cluster.window = w.window;
  cluster.engine = std::make_unique<AsyncEngine>();
  cluster.blocks.resize(num_blocks);
  cluster.threads.resize(static_cast<size_t>(num_blocks) * num_threads);
  cluster.live = cluster.num_slots = num_blocks * num_threads;
  for (uint32_t rank = 0; rank < num_blocks; ++rank) {
    Block& block = cluster.blocks[rank];
    const EmuDim inside = at(rank, launch.cluster);
    const EmuDim block_id{id.x * launch.cluster.x + inside.x, id.y * launch.cluster.y + inside.y, id.z * launch.cluster.z + inside.z};
    block.cluster = &cluster;
    block.rank = rank;
    block.number = block_id.x + static_cast<uint64_t>(launch.grid.x) * (block_id.y + static_cast<uint64_t>(launch.grid.y) * block_id.z);
    block.first = rank * num_threads;
    block.num_threads = block.live = num_threads;
    block.warps.resize((num_threads + 31) / 32);
    lay_out_shared(cluster, cluster.window + block.window());
    for (uint32_t i = 0; i < num_threads; ++i) {
      Thread& t = w.thread(block.first + i);
      cluster.threads[block.first + i] = &t;
      set_up_thread(t, cluster, block, block_id, i);
      ++block.warps[t.warp].live;
    }
  }
}

// Which cluster of a grid runs as the i-th.
class Order {
public:
  explicit Order(uint64_t clusters) : clusters_(clusters) {
    if (settings().block_schedule != Schedule::kRandom) return;
    first_ = settings().block_seed % clusters;
    for (step_ = settings().block_seed / clusters % clusters + 1; std::gcd(step_, clusters) != 1;) ++step_;
  }

  uint64_t operator[](uint64_t i) const {
    if (settings().block_schedule == Schedule::kReverse) return clusters_ - 1 - i;
    return static_cast<uint64_t>((first_ + static_cast<__uint128_t>(i) * step_) % clusters_);
  }

private:
  uint64_t clusters_, first_ = 0, step_ = 1;
};

}  // namespace

uint32_t Cluster::add_slot(Describe name) {
  unit_names.push_back(std::move(name));
  return num_slots++;
}

Block* Cluster::block_of(uint32_t address) {
  const uint32_t rank = address >> kEmuBlockWindowBits;
  return rank < blocks.size() ? &blocks[rank] : nullptr;
}

// Its shared memory is gone: another block of the cluster that still uses it is wrong, and so is a later kernel that has less of it.
void end_block(Block& block) {
  if (!block.cluster->checked()) return;
  const LaunchConfig& launch = *block.cluster->launch;
  const size_t bytes = dynamic_offset(*launch.kernel) + launch.dynamic_shared;
  shadow().mark_valid(shadow().offset(block.cluster->window + block.window()), bytes, false);
}

LaunchResult run_grid(const LaunchConfig& launch) {
  const uint64_t clusters = volume(launch.grid) / volume(launch.cluster);
  std::lock_guard lock(device_mutex[launch.device % kMaxDevices]);
  Employment employment;
  Worker& w = employment.worker;
  const uint32_t first = take_numbers(static_cast<uint32_t>(clusters));
  w.failure = LaunchResult();
  w.random = settings().seed;
  w.atomics.clear();
  const Order order(clusters);
  for (uint64_t i = 0; i < clusters && !w.failure.error; ++i) {
    Cluster cluster;
    cluster.number = first + static_cast<uint32_t>(i);
    cluster.first_number = first;
    set_up_cluster(cluster, w, launch, order[i]);
    w.cluster = &cluster;
    w.run();
    if (w.failure.error) std::for_each(cluster.blocks.begin(), cluster.blocks.end(), end_block);
  }
  w.cluster = nullptr;
  LaunchResult result = w.failure;
  result.first_cluster = first;
  result.end_cluster = first + static_cast<uint32_t>(clusters);
  return result;
}

}  // namespace emu
