// Batch normalisation of planes in training, in one launch whose blocks stay. A block takes one channel after the other, and has it in shared
// memory from when it is added up until it is written: x, and dy, come from memory once.
//
//    copies     x of channel 0 | x of 1, into slots as they become free   | x of 2 ...
//    threads        sums of 0  | y of 0, slot by slot;       sums of 1    | y of 1, slot by slot;       sums of 2
//    block                     o line of 0                                o line of 1
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
// pass through registers, kTurns steps of kAtOnce vectors in turn, each of which is loaded as soon as what was there is added up: the last ones
// stay there; those before them are read again, the last ones first, from the second-level cache as far as it has them.
//
// A vector is 1024 bytes to and from memory for a warp, for which a multiprocessor has time for 225 instructions: steps of which every thread
// has all vectors (`all`) are code of their own, without conditions, and a step divides once.
#pragma once

#include "dnncore/normalization/channel_params.cuh"
#include "dnncore/normalization/totals.cuh"
#include "dnncore/ptx/async_copy.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore {

constexpr int kRingThreads = 512;  // most of a block; _THREADS in ring.py
constexpr int kRingSlots = 28;     // of 16 bytes, of a thread; _SLOTS there

// The slots of kTensors tensors: x, or x and dy.
template <typename T, int kTensors>
struct Ring {
  static constexpr int kWidth = 16 / sizeof(T);
  static constexpr int kSlots = kRingSlots / kTensors;
  static constexpr int kAtOnce = 4 / kTensors;  // vectors of a step, which a thread takes together; _AT_ONCE in ring.py
  static constexpr int kTurns = 3;              // steps that registers keep of those that pass through them; _TURNS there
  static constexpr int kLag = 2;                // steps
  static constexpr int kAhead = kSlots - kLag * kAtOnce;  // vectors of a channel that are added up while the one before is written
  static_assert(kSlots % kAtOnce == 0 && kAhead % kAtOnce == 0);
  using Elements = Loaded<T, kWidth>;

  // How far a thread's vectors are apart in a tensor, in elements: in planes that many further and, where the rest of those is more than a plane,
  // in the next one.
  struct Spread {
    int32 step;
    int32 wrap;
  };

  const ChannelParams& params;
  Elements* slots;
  int32 mine;    // vectors of a channel that this thread has
  int32 whole;   // and those that each thread of the block has
  int32 held;    // of the most that a thread has, those that have slots; whole steps of kAtOnce
  int32 passed;  // and steps of those that pass
  int32 oldest;  // slot of the first vector of the channel that is written
  int32 coming;  // channel of which the next copy is, and which of its vectors
  int32 coming_vector;
  int32 rest_step;    // of the place in a plane
  Spread spread;      // of all but dy
  Spread dy_spread;

  __device__ __forceinline__ Ring(const ChannelParams& params, void* shared) : params(params), oldest(0), coming_vector(0) {
    slots = static_cast<Elements*>(shared) + threadIdx.x;
    const int32 threads = blockDim.x;
    const int32 most = (params.vectors + threads - 1) / threads;
    whole = params.vectors / threads;
    mine = whole + (static_cast<int32>(threadIdx.x) < params.vectors - whole * threads);
    held = min((most + kAtOnce - 1) / kAtOnce * kAtOnce, kSlots);
    passed = (max(most - held, 0) + kAtOnce - 1) / kAtOnce;
    coming = blockIdx.x;
    const SmallQuotientRemainder apart = divide(threads, params.run);
    rest_step = apart.remainder;
    const auto spread_by = [&](int32 outer, int32 inner) {
      return Spread{apart.quotient * outer + apart.remainder * inner, outer - params.run.value * inner};
    };
    spread = spread_by(params.outer, params.inner);
    dy_spread = spread_by(params.dy_outer, params.dy_inner);
  }

  // What a channel has one value of.
  __device__ __forceinline__ bool writes() const { return threadIdx.x == 0; }
  __device__ __forceinline__ bool has(int k) const { return k < mine; }
  // Whether each thread of the block has the vectors of a step.
  __device__ __forceinline__ bool all(int first) const { return first + kAtOnce <= whole; }

  // Where the vectors of a step are, from where a tensor's channel is; of dy, or of one that lies as the others do.
  template <bool kOfDy = false>
  __device__ __forceinline__ void find(int32 (&offsets)[kAtOnce], int first) const {
    const Spread& by = kOfDy ? dy_spread : spread;
    const SmallQuotientRemainder split = divide(static_cast<int32>(threadIdx.x + first * blockDim.x), params.run);
    int32 rest = split.remainder;
    int32 offset = split.quotient * (kOfDy ? params.dy_outer : params.outer) + rest * (kOfDy ? params.dy_inner : params.inner);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      offsets[k] = offset;
      rest += rest_step;
      offset += by.step;
      if (rest >= params.run.value) {
        rest -= params.run.value;
        offset += by.wrap;
      }
    }
  }
  template <typename Element>
  __device__ __forceinline__ Element* channel_of(Element* tensor, int32 channel) const {
    return tensor + channel * params.step;
  }

  template <bool kOfDy = false>
  __device__ __forceinline__ void load(Elements (&found)[kAtOnce], const void* tensor, int32 channel, int first) const {
    int32 offsets[kAtOnce];
    find<kOfDy>(offsets, first);
    const T* const from = channel_of(static_cast<const T*>(tensor), channel);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) found[k].load_if(has(first + k), from + offsets[k]);
  }

  // The slot of a tensor's first vector of a step, of the channel whose first one is in slot `from`; the others are blockDim.x apart.
  __device__ __forceinline__ Elements* slots_of(int tensor, int32 from, int first) const {
    const int32 place = from + first < kSlots ? from + first : from + first - kSlots;
    return slots + (tensor * kSlots + place) * blockDim.x;
  }
  __device__ __forceinline__ int32 next_oldest() const { return oldest + held < kSlots ? oldest + held : oldest + held - kSlots; }

  __device__ __forceinline__ void read(Elements (&found)[kTensors][kAtOnce], int32 from, int first) const {
#pragma unroll
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      const Elements* const place = slots_of(tensor, from, first);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) found[tensor][k] = place[k * blockDim.x];
    }
  }

  // Begin to copy what comes next to where a step of the channel that is written was.
  __device__ __forceinline__ void refill(int first) {
    if (coming_vector == held) coming_vector = 0, coming += gridDim.x;
    if (coming < params.channels) {
      copy<false>(slots_of(0, oldest, first), static_cast<const T*>(params.x));
      if constexpr (kTensors > 1) copy<true>(slots_of(1, oldest, first), static_cast<const T*>(params.dy));
    }
    commit_copies();
    coming_vector += kAtOnce;
  }

  // visit(first) for the steps of a channel from kFirst on, as they come; the last copies are those of kSlots vectors from its first one on.
  template <int kFirst, typename Visit>
  __device__ __forceinline__ void as_they_come(const Visit& visit) const {
    if constexpr (kFirst < kSlots) {
      if (kFirst >= held) return;
      wait_for_copies<(kSlots - kFirst) / kAtOnce - 1>();
      visit(kFirst);
      as_they_come<kFirst + kAtOnce>(visit);
    }
  }

 private:
  template <bool kOfDy>
  __device__ __forceinline__ void copy(Elements* to, const T* tensor) const {
    int32 offsets[kAtOnce];
    find<kOfDy>(offsets, coming_vector);
    const T* const from = channel_of(tensor, coming);
    if (all(coming_vector)) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) copy_vector_async(to + k * blockDim.x, from + offsets[k], true);
    } else {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const bool there = has(coming_vector + k);
        copy_vector_async(to + k * blockDim.x, there ? from + offsets[k] : tensor, there);
      }
    }
  }
};

// What the lanes of a warp have found, in each of them.
template <typename C>
__device__ __forceinline__ Sums<C> put_together(const Sums<C>& sums) {
  return merge_warp(sums);
}
// Of moments by distances from the mean of the first lane, for one division: what cancels is at most kWarpSize times as large as what is left, if
// no lane has more elements than the first.
template <typename C>
__device__ __forceinline__ Moments<C> put_together(const Moments<C>& moments) {
  const C from = __shfl_sync(0xffffffffu, moments.mean, 0), distance = moments.mean - from;
  C sum = moments.count * distance, squares = moments.squares + sum * distance, count = moments.count;
#pragma unroll
  for (int apart = 1; apart < kWarpSize; apart *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    squares += __shfl_xor_sync(0xffffffffu, squares, apart);
    count += __shfl_xor_sync(0xffffffffu, count, apart);
  }
  const C apart = sum / max(count, C(1)), left = squares - sum * apart;
  return {from + apart, left < C(0) ? C(0) : left, count};  // NaN stays
}

// What the threads of a block find of one channel after the other: each gets what all have found. Of two channels in turn: who is here again has
// met the others since they read what it overwrites.
template <typename Found>
struct FoundByWarps {
  Found of_warps[2][kRingThreads / kWarpSize];

  __device__ __forceinline__ Found total(Found found, int turn) {
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    found = put_together(found);
    if (lane == 0) of_warps[turn % 2][warp] = found;
    __syncthreads();
    return put_together(lane < static_cast<int>(blockDim.x) / kWarpSize ? of_warps[turn % 2][lane] : Found{});
  }
};

// Direction is RingForward or RingBackward, of ring_forward.cuh and ring_backward.cuh.
template <typename T, template <typename> typename Direction>
__device__ void normalize_in_ring(const ChannelParams& params) {
  using Way = Direction<T>;
  using Slots = typename Way::Slots;
  constexpr int kAtOnce = Slots::kAtOnce, kTurns = Slots::kTurns;
  extern __shared__ __align__(16) unsigned char slots[];  // [tensors][Slots::kSlots][threads] of 16 bytes
  __shared__ FoundByWarps<typename Way::Found> warps;
  let_next_start();
  Slots ring(params, slots);
  Way way(params, ring);
  wait_for_previous();
#pragma unroll 1
  for (int first = 0; first < Slots::kSlots; first += kAtOnce) ring.refill(first);
  const int32 behind = max(ring.held - Slots::kAhead, 0), stride = gridDim.x;
  typename Way::Passing passing[kTurns];
  typename Slots::Elements found[Way::kTensors][kAtOnce];
  int32 channel = blockIdx.x;
  const auto first_of = [&](int step) { return ring.held + step * kAtOnce; };
  const auto begin_passing = [&] {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn < ring.passed) way.load(passing[turn], channel, first_of(turn), false);
    }
  };
  const auto add_slots = [&](int32 of, int32 from, int first) {
    ring.read(found, from, first);
    way.add_slots(found, of, from, first);
  };
  const auto as_it_comes = [&](int first) {
    way.expect(channel, first);
    add_slots(channel, ring.oldest, first);
  };
  way.start(channel, stride);
  begin_passing();
  ring.template as_they_come<0>(as_it_comes);
#pragma unroll 1
  for (int had = 0;; ++had) {  // channels
#pragma unroll 1
    for (int begin = 0; begin < ring.passed; begin += kTurns) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int step = begin + turn;
        if (step >= ring.passed) break;
        way.add_passing(passing[turn], channel, first_of(step));
        if (step + kTurns < ring.passed) way.load(passing[turn], channel, first_of(step + kTurns), false);
      }
    }
    way.conclude(channel, warps.total(way.found(channel), had));
#pragma unroll 1
    for (int begin = (ring.passed - 1) / kTurns * kTurns; begin >= 0; begin -= kTurns) {
#pragma unroll
      for (int turn = kTurns - 1; turn >= 0; --turn) {
        const int step = begin + turn;
        if (step >= ring.passed) continue;
        way.write_passing(passing[turn], channel, first_of(step), step + kTurns < ring.passed);
        if (step >= kTurns) way.load(passing[turn], channel, first_of(step - kTurns), true);
      }
    }
    const int32 next = channel + stride;
    const bool goes_on = next < params.channels;
    if (goes_on) way.start(next, stride);
#pragma unroll 1
    for (int first = 0; first < ring.held; first += kAtOnce) {
      const int ahead = first - behind;
      const bool adds = goes_on && ahead >= 0;
      if (adds) way.expect(next, ahead);
      ring.read(found, ring.oldest, first);
      way.write(found, channel, first);
      __syncwarp();  // the compiler moves no read of the slots past it
      ring.refill(first);
      if (!adds) continue;
      wait_for_copies<Slots::kLag>();
      add_slots(next, ring.next_oldest(), ahead);
    }
    if (!goes_on) break;
    ring.oldest = ring.next_oldest();
    channel = next;
    begin_passing();
    ring.template as_they_come<Slots::kAhead>(as_it_comes);
  }
}

}  // namespace dnncore
