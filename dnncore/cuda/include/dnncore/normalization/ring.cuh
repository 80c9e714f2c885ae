// Batch normalisation of planes in training, in one launch whose blocks stay. A block, or a cluster of blocks, takes one channel after
// the other, and has it in shared memory from when it is added up until it is written: x, and dy, come from memory once.
//
//    copies     x of channel 0 | x of 1, into slots as they become free   | x of 2 ...
//    threads        sums of 0  | y of 0, slot by slot;       sums of 1    | y of 1, slot by slot;       sums of 2
//    cluster                   o line of 0                                o line of 1
//
// Each thread has kSlots slots of 16 bytes for x, or half as many for x and dy, which it fills by asynchronous copies and reads itself: nobody
// waits for anybody but where a channel's sums are put together. It writes what is in a slot, begins to copy into it what comes kSlots vectors
// later, and adds up the vectors of the next channel that are there, always kLag of its copies being on their way:
//
//                  being written                being added up               on their way
//                        v                            v                     |--- kLag ---|
//    slots      ... | channel 0, first + 0 1 2 3 | channel 1, ahead + 0 1 2 3 | ...        | (free: the next copies)
//
// Only the last vectors of a channel are added up while nothing is written. Of a channel that has more vectors than there are slots, the others
// pass through registers, a batch of kPassing at a time: the last batch stays there; those before it are read again, the last ones first, from
// the second-level cache as far as it has them.
#pragma once

#include "dnncore/normalization/channel_params.cuh"
#include "dnncore/normalization/totals.cuh"
#include "dnncore/ptx/async_copy.cuh"
#include "dnncore/ptx/cluster.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore {

constexpr int kRingThreads = 512;  // most of a block; _THREADS in ring.py
constexpr int kRingSlots = 28;     // of 16 bytes, of a thread; _SLOTS there

// The slots of kTensors tensors: x, or x and dy. kBlocks have a channel together.
template <typename T, int kTensors, int kBlocks>
struct Ring {
  static constexpr int kWidth = 16 / sizeof(T);
  static constexpr int kSlots = kRingSlots / kTensors;
  static constexpr int kAtOnce = 4 / kTensors;   // vectors that a thread takes together
  static constexpr int kPassing = 8 / kTensors;  // likewise, of those that pass through registers
  static constexpr int kLag = 8 / kTensors;
  static constexpr int kAhead = kSlots - kLag;  // vectors of a channel that are added up while the one before is written
  static_assert(kSlots % kAtOnce == 0 && kAhead % kAtOnce == 0);
  using Elements = Loaded<T, kWidth>;

  const ChannelParams& params;
  Elements* slots;
  int32 begin;   // of the block's part of each channel, in vectors
  int32 mine;    // vectors of this thread
  int32 held;    // of the most that a thread has, those that have slots; whole steps of kAtOnce
  int32 passed;  // and those that pass
  int32 oldest;  // slot of the first vector of the channel that is written
  int32 coming;  // channel of which the next copy is, and which of its vectors
  int32 coming_vector;

  __device__ __forceinline__ Ring(const ChannelParams& params, void* shared) : params(params), oldest(0), coming_vector(0) {
    slots = static_cast<Elements*>(shared) + threadIdx.x;
    const int32 rank = kBlocks > 1 ? static_cast<int32>(block_rank()) : 0, threads = blockDim.x;
    begin = min(rank * params.part, params.vectors);
    const int32 end = min(begin + params.part, params.vectors), first = begin + static_cast<int32>(threadIdx.x);
    mine = max((end - first + threads - 1) / threads, 0);
    const int32 most = (params.part + threads - 1) / threads;
    held = min((most + kAtOnce - 1) / kAtOnce * kAtOnce, kSlots);
    passed = max(most - held, 0);
    coming = blockIdx.x / kBlocks;
  }

  __device__ __forceinline__ bool has(int k) const { return k < mine; }

  // Where the k-th of a thread's vectors of a channel is.
  template <typename Element>
  __device__ __forceinline__ Element* at(Element* tensor, int32 channel, int k) const {
    return at(tensor, channel, k, params.outer, params.inner);
  }
  template <typename Element>
  __device__ __forceinline__ Element* at(Element* tensor, int32 channel, int k, int32 outer, int32 inner) const {
    const SmallQuotientRemainder split = divide(begin + static_cast<int32>(threadIdx.x + k * blockDim.x), params.run);
    return tensor + channel * params.step + (split.quotient * outer + split.remainder * inner);
  }
  __device__ __forceinline__ const T* dy_at(int32 channel, int k) const {
    return at(static_cast<const T*>(params.dy), channel, k, params.dy_outer, params.dy_inner);
  }

  // The slot of a tensor's k-th vector, of the channel whose first one is in slot `from`.
  __device__ __forceinline__ Elements& slot(int tensor, int32 from, int k) const {
    const int32 place = from + k < kSlots ? from + k : from + k - kSlots;
    return slots[(tensor * kSlots + place) * blockDim.x];
  }
  __device__ __forceinline__ int32 next_oldest() const { return oldest + held < kSlots ? oldest + held : oldest + held - kSlots; }

  __device__ __forceinline__ void read(Elements (&found)[kTensors][kAtOnce], int32 from, int first) const {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int tensor = 0; tensor < kTensors; ++tensor) found[tensor][k] = slot(tensor, from, first + k);
    }
  }

  // Begin to copy what comes next to where the k-th vector of the channel that is written was.
  __device__ __forceinline__ void refill(int k) {
    if (coming_vector == held) coming_vector = 0, coming += gridDim.x / kBlocks;
    const bool there = coming < params.channels && has(coming_vector);
    const auto* x = static_cast<const T*>(params.x);
    copy_vector_async(&slot(0, oldest, k), there ? at(x, coming, coming_vector) : x, there);
    if constexpr (kTensors > 1) {
      const auto* dy = static_cast<const T*>(params.dy);
      copy_vector_async(&slot(1, oldest, k), there ? dy_at(coming, coming_vector) : dy, there);
    }
    commit_copies();
    ++coming_vector;
  }

  // visit(first) for the steps of a channel from kFirst on, as they come; the last copies are those of kSlots vectors from its first one on.
  template <int kFirst, typename Visit>
  __device__ __forceinline__ void as_they_come(const Visit& visit) const {
    if constexpr (kFirst < kSlots) {
      if (kFirst >= held) return;
      wait_for_copies<kSlots - kFirst - kAtOnce>();
      visit(kFirst);
      as_they_come<kFirst + kAtOnce>(visit);
    }
  }
};

// What the threads of a cluster find of one channel after the other: each gets what all have found.
template <typename Found, int kBlocks>
struct RingExchange {
  static constexpr int kWarps = kRingThreads / kWarpSize;
  struct Shared {
    Found of_warps[2][kWarps];  // of two channels in turn: who is here again has met the others since they read what it overwrites
    uint4 parts[kBlocks];
    Mbarrier exchanged;
  };

  Shared& shared;
  int32 turn;

  __device__ __forceinline__ explicit RingExchange(Shared& shared) : shared(shared), turn(0) {
    if constexpr (kBlocks > 1) {
      if (threadIdx.x == 0) {
        make_barrier(shared.exchanged, 1);
        publish_barriers();
      }
      __syncthreads();
      invite();
    }
  }

  __device__ __forceinline__ Found total(Found found) {
    static_assert(sizeof(Found) <= sizeof(uint4));
    const int place = turn % 2, lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    found = merge_warp(found);
    if (lane == 0) shared.of_warps[place][warp] = found;
    __syncthreads();
    if (kBlocks == 1 || warp == 0) {
      found = lane < static_cast<int>(blockDim.x) / kWarpSize ? shared.of_warps[place][lane] : Found{};
      found = merge_warp(found);
    }
    if constexpr (kBlocks > 1) {
      wait_for_cluster();  // all have invited long ago
      if (warp == 0 && lane < kBlocks) {
        uint4 bits{};
        memcpy(&bits, &found, sizeof(found));
        store_in_block(lane, shared.parts[block_rank()], bits, shared.exchanged);
      }
      wait(shared.exchanged, turn % 2);
      memcpy(&found, &shared.parts[lane % kBlocks], sizeof(found));
      invite();
#pragma unroll
      for (int distance = 1; distance < kBlocks; distance *= 2) found = merge_lanes(found, distance);
    }
    ++turn;
    return found;
  }

  // All threads, once, after the last total.
  __device__ __forceinline__ void leave() const {
    if constexpr (kBlocks > 1) wait_for_cluster();
  }

 private:
  // Say that others may write into this block's memory: of what they wrote before this thread has read all.
  __device__ __forceinline__ void invite() const {
    if (threadIdx.x == 0) arrive_expecting(shared.exchanged, kBlocks * sizeof(uint4));
    arrive_in_cluster();
  }
};

// Forward, of one thread. Sums are of distances from its first element, which is one of those that it adds up, so that what cancels is at most
// as many times larger than what is left as the thread has elements.
template <typename T, int kBlocks>
struct RingForward {
  using C = Compute<T>;
  using Found = Moments<C>;
  static constexpr int kTensors = 1;
  using Slots = Ring<T, kTensors, kBlocks>;
  using Elements = typename Slots::Elements;
  static constexpr int kWidth = Slots::kWidth;

  const ChannelParams& params;
  const Slots& ring;
  const C epsilon, alpha, floor;
  C centre, sum, squares;     // of the channel that is added up
  C mean, factor, added;  // of the channel that is written

  __device__ __forceinline__ RingForward(const ChannelParams& params, const Slots& ring)
      : params(params),
        ring(ring),
        epsilon(static_cast<C>(params.epsilon)),
        alpha(static_cast<C>(params.blend.alpha)),
        floor(params.rectifies ? C(0) : -C(INFINITY)),
        centre(0) {}

  __device__ __forceinline__ void start(int32) { sum = squares = C(0); }
  __device__ __forceinline__ void expect(int32, int) {}

  template <int kNumber>
  __device__ __forceinline__ void load(Elements (&found)[kTensors][kNumber], int32 channel, int first, bool) const {
#pragma unroll
    for (int k = 0; k < kNumber; ++k) found[0][k].load_if(ring.has(first + k), ring.at(static_cast<const T*>(params.x), channel, first + k));
  }

  template <int kNumber>
  __device__ __forceinline__ void add_up(const Elements (&found)[kTensors][kNumber], int32, int first) {
    if (first == 0) centre = first_of(found[0][0]);
#pragma unroll
    for (int k = 0; k < kNumber; ++k) {
      if (!ring.has(first + k)) continue;
      C values[kWidth];
      found[0][k].widen_into(values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const C distance = values[i] - centre;
        sum += distance;
        squares += distance * distance;
      }
    }
  }
  __device__ __forceinline__ void add_slots(const Elements (&found)[kTensors][Slots::kAtOnce], int32 channel, int32, int first) {
    add_up(found, channel, first);
  }
  __device__ __forceinline__ static C first_of(const Elements& vector) {
    C values[kWidth];
    vector.widen_into(values);
    return values[0];
  }

  __device__ __forceinline__ Found found() const {
    const C count = static_cast<C>(ring.mine * kWidth), apart = sum / max(count, C(1)), left = squares - sum * apart;
    return {centre + apart, left < C(0) ? C(0) : left, count};  // NaN stays
  }

  __device__ __forceinline__ void conclude(int32 channel, const Found& moments, bool writes) {
    const C inv_std = C(1) / sqrt(moments.squares / moments.count + epsilon);
    const C bias = read_parameter<T>(params, kOfBias, channel, C(0));
    factor = inv_std * read_parameter<T>(params, kOfScale, channel, C(1));
    const bool is_line = sizeof(T) == 2;  // with the roundings of channels.cuh, by which a gradient finds out where y > 0
    mean = is_line ? C(0) : moments.mean;
    added = is_line ? bias - moments.mean * factor : bias;
    if (!writes) return;
    write_parameter<T>(params, kOfMean, channel, moments.mean);
    write_parameter<T>(params, kOfInvStd, channel, inv_std);
    write_running<T>(params, channel, moments.mean, moments.squares, moments.count);
  }

  template <int kNumber>
  __device__ __forceinline__ void write(const Elements (&found)[kTensors][kNumber], int32 channel, int first) const {
    Elements z[kNumber];
    if (params.z != nullptr) {
#pragma unroll
      for (int k = 0; k < kNumber; ++k) z[k].load_if(ring.has(first + k), ring.at(static_cast<const T*>(params.z), channel, first + k));
    }
#pragma unroll
    for (int k = 0; k < kNumber; ++k) {
      if (!ring.has(first + k)) continue;
      C values[kWidth], addends[kWidth];
      found[0][k].widen_into(values);
      z[k].widen_into(addends);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        C value = factor * (values[i] - mean) + added;
        if (params.z != nullptr) value += addends[i];
        values[i] = alpha * (value < floor ? floor : value);  // NaN stays NaN
      }
      write_vector<T>(params, values, ring.at(static_cast<T*>(params.output), channel, first + k));
    }
  }
};

// Its gradients. Where an activation followed, dy is masked by y as it is added up, and stays so in its slot; where a residual was added, what
// is masked is dz as well.
template <typename T, int kBlocks>
struct RingBackward {
  using C = Compute<T>;
  using Found = Sums<C>;
  static constexpr int kTensors = 2;
  using Slots = Ring<T, kTensors, kBlocks>;
  using Elements = typename Slots::Elements;
  static constexpr int kWidth = Slots::kWidth, kAtOnce = Slots::kAtOnce;

  const ChannelParams& params;
  const Slots& ring;
  const C alpha, share;
  Elements y[kAtOnce];  // of what is added up next
  C plain, weighted, mean, inv_std;  // of the channel that is added up
  C a, b, c, centre;                 // of the channel that is written

  __device__ __forceinline__ RingBackward(const ChannelParams& params, const Slots& ring)
      : params(params),
        ring(ring),
        alpha(static_cast<C>(params.blend.alpha)),
        share(C(1) / static_cast<C>(params.vectors * kWidth)) {}

  __device__ __forceinline__ void start(int32 channel) {
    plain = weighted = C(0);
    mean = read_parameter<T>(params, kOfMean, channel, C(0));
    inv_std = read_parameter<T>(params, kOfInvStd, channel, C(1));
  }
  __device__ __forceinline__ void expect(int32 channel, int first) {
    if (params.y != nullptr) load_y(y, channel, first);
  }

  // Once more, dy may be what the thread itself has left as dz.
  template <int kNumber>
  __device__ __forceinline__ void load(Elements (&found)[kTensors][kNumber], int32 channel, int first, bool once_more) const {
    const bool is_masked = once_more && params.z != nullptr;
#pragma unroll
    for (int k = 0; k < kNumber; ++k) {
      const bool there = ring.has(first + k);
      found[0][k].load_if(there, ring.at(static_cast<const T*>(params.x), channel, first + k));
      const T* dy = is_masked ? ring.at(static_cast<const T*>(params.z), channel, first + k) : ring.dy_at(channel, first + k);
      found[1][k].load_if(there, dy);
    }
    if (params.y == nullptr || is_masked) return;
    Elements of_y[kNumber];
    load_y(of_y, channel, first);
    mask(found[1], of_y);
  }
  template <int kNumber>
  __device__ __forceinline__ void load_y(Elements (&of_y)[kNumber], int32 channel, int first) const {
#pragma unroll
    for (int k = 0; k < kNumber; ++k) of_y[k].load_if(ring.has(first + k), ring.at(static_cast<const T*>(params.y), channel, first + k));
  }
  template <int kNumber>
  __device__ __forceinline__ static void mask(Elements (&dy)[kNumber], const Elements (&of_y)[kNumber]) {
#pragma unroll
    for (int k = 0; k < kNumber; ++k) {
      C values[kWidth];
      of_y[k].widen_into(values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        T& place = reinterpret_cast<T*>(&dy[k].word)[i];
        place = values[i] > C(0) ? place : T{};
      }
    }
  }

  template <int kNumber>
  __device__ __forceinline__ void add_up(const Elements (&found)[kTensors][kNumber], int32 channel, int first) {
#pragma unroll
    for (int k = 0; k < kNumber; ++k) {
      if (!ring.has(first + k)) continue;
      if (params.z != nullptr) {
        using Word = decltype(found[1][k].word);
        *reinterpret_cast<Word*>(ring.at(static_cast<T*>(params.z), channel, first + k)) = found[1][k].word;
      }
      C values[kWidth], weights[kWidth];
      found[0][k].widen_into(values);
      found[1][k].widen_into(weights);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        plain += weights[i];
        weighted += weights[i] * (values[i] - mean);
      }
    }
  }
  __device__ __forceinline__ void add_slots(Elements (&found)[kTensors][kAtOnce], int32 channel, int32 from, int first) {
    if (params.y != nullptr) {
      mask(found[1], y);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) ring.slot(1, from, first + k) = found[1][k];
    }
    add_up(found, channel, first);
  }

  __device__ __forceinline__ Found found() const { return {plain, weighted * inv_std}; }

  __device__ __forceinline__ void conclude(int32 channel, const Found& sums, bool writes) {
    centre = mean;
    a = inv_std * read_parameter<T>(params, kOfScale, channel, C(1));
    b = sums.normalized * (share * a) * inv_std;
    c = sums.plain * (share * a);
    if (writes) write_gradients<T>(params, channel, sums.normalized, sums.plain);
  }

  template <int kNumber>
  __device__ __forceinline__ void write(const Elements (&found)[kTensors][kNumber], int32 channel, int first) const {
#pragma unroll
    for (int k = 0; k < kNumber; ++k) {
      if (!ring.has(first + k)) continue;
      C values[kWidth], weights[kWidth];
      found[0][k].widen_into(values);
      found[1][k].widen_into(weights);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] = alpha * (a * weights[i] - b * (values[i] - centre) - c);
      write_vector<T>(params, values, ring.at(static_cast<T*>(params.output), channel, first + k));
    }
  }
};

template <typename T, int kBlocks, template <typename, int> typename Direction>
__device__ void normalize_in_ring(const ChannelParams& params) {
  using Way = Direction<T, kBlocks>;
  using Slots = typename Way::Slots;
  using Exchange = RingExchange<typename Way::Found, kBlocks>;
  constexpr int kTensors = Way::kTensors, kAtOnce = Slots::kAtOnce, kPassing = Slots::kPassing;
  extern __shared__ __align__(16) unsigned char slots[];  // [kTensors][Slots::kSlots][threads] of 16 bytes
  __shared__ typename Exchange::Shared shared;
  let_next_start();
  Slots ring(params, slots);
  Way way(params, ring);
  Exchange exchange(shared);
  wait_for_previous();
#pragma unroll 1
  for (int k = 0; k < Slots::kSlots; ++k) ring.refill(k);
  const int32 batches = (ring.passed + kPassing - 1) / kPassing, behind = max(ring.held - Slots::kAhead, 0);
  const int32 stride = gridDim.x / kBlocks;
  const bool writes = blockIdx.x % kBlocks == 0 && threadIdx.x == 0;  // what a channel has one value of
  typename Slots::Elements passing[kTensors][kPassing], found[kTensors][kAtOnce];
  int32 channel = blockIdx.x / kBlocks;
  const auto add_slots = [&](int32 of, int32 from, int first) {
    ring.read(found, from, first);
    way.add_slots(found, of, from, first);
  };
  const auto as_it_comes = [&](int first) {
    way.expect(channel, first);
    add_slots(channel, ring.oldest, first);
  };
  way.start(channel);
  if (batches > 0) way.load(passing, channel, ring.held, false);
  ring.template as_they_come<0>(as_it_comes);
#pragma unroll 1
  while (true) {
#pragma unroll 1
    for (int batch = 0; batch < batches; ++batch) {
      const int first = ring.held + batch * kPassing;
      if (batch > 0) way.load(passing, channel, first, false);
      way.add_up(passing, channel, first);
    }
    way.conclude(channel, exchange.total(way.found()), writes);
#pragma unroll 1
    for (int batch = batches - 1; batch >= 0; --batch) {
      const int first = ring.held + batch * kPassing;
      if (batch < batches - 1) way.load(passing, channel, first, true);
      way.write(passing, channel, first);
    }
    const int32 next = channel + stride;
    const bool goes_on = next < params.channels;
    if (goes_on) way.start(next);
#pragma unroll 1
    for (int first = 0; first < ring.held; first += kAtOnce) {
      const int ahead = first - behind;
      const bool adds = goes_on && ahead >= 0;
      if (adds) way.expect(next, ahead);
      ring.read(found, ring.oldest, first);
      way.write(found, channel, first);
      __syncwarp();  // the compiler moves no read of the slots past it
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) ring.refill(first + k);
      if (!adds) continue;
      wait_for_copies<Slots::kLag>();
      add_slots(next, ring.next_oldest(), ahead);
    }
    if (!goes_on) break;
    ring.oldest = ring.next_oldest();
    channel = next;
    if (batches > 0) way.load(passing, channel, ring.held, false);
    ring.template as_they_come<Slots::kAhead>(as_it_comes);
  }
  exchange.leave();
}

}  // namespace dnncore
