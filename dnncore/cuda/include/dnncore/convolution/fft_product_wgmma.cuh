// The products of fft_product_tf32.cuh by the matrix units of sm_90, four warps together: C[row][column] = sum over k of
// A[k][column] * conj(B[k][row]), each product of fp32 made of three of tf32 (tf32_split.cuh).
//
//                    +---------------------- shared memory ----------------------+
//     A, columns --->|  [ 16 k x 128 columns ]  ...  kStages, by the copy engine |     A tile is 64 rows x 128 columns of a plane.
//     B, rows ------>|  [ 16 k x  64 rows    ]  ...                              |
//                    |        |                                                  |
//     splitters      |        v        split, and turned to K-major              |
//                    |  [ 64 rows x 16 k, nearest | rest ]  ...  kSplits         |
//                    +------|----------------------------------------------------+
//     consumer 0            v    columns  0 ...  63 from registers, split there  -->  sums of a stage, added to the others by fp32 units
//     consumer 1                 columns 64 ... 127                              -->  C, 128 bytes of a row at a time
//
// Columns are the rows of an instruction (m64n64k8), which takes them from registers, and rows its columns, from shared memory. In
// complex numbers there are four instructions for eight k, each three times:
//
//     re C  +=  ar br,  ai bi        im C  +=  ai br,  - ar bi        the minus being the instruction's
//
// so that neither operand is there twice. Which k is which summand is free: of eight, the even ones come first. Then lane 4 g + t has
// of columns 2 g and 2 g + 1, rows g and g + 8 of an instruction, k = 2 t and 2 t + 1, for which it reads 16 bytes each, and eight lanes,
// of two g and four t, meet all banks of what the copy engine has swizzled. A splitter reads two rows of four k, and writes 16 bytes
// of real or imaginary parts; of every other four pairs of rows the tile has the second row first, so that its writes meet all banks, too.
//
// Tensor cores cut sums off where fp32 rounds them; so those of a stage, of 32 summands, are made by themselves. While the units have
// products of one half of a stage a consumer reads the columns of the next half; while it adds up, they have the other consumer's.
//
// Where there are no more than 64 columns, of a gradient of filters with long sums, consumers take turns instead: one has the even
// stages, the other one the odd ones, and in the end each adds up half of the rows.
//
// A block goes from tile to tile. The splitters, of which one lane of each warp has the copy engine fill a stage, are ahead of the
// consumers, also while these write: a stage is filled again when the split of what was in it has been multiplied.
#pragma once

#include "dnncore/convolution/fft.cuh"
#include "dnncore/convolution/tf32_split.cuh"
#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/tensor_copy.cuh"
#include "dnncore/ptx/warpgroup_rows.cuh"

namespace dnncore::fft {

// Mirrored by _PARAMS in dnncore/cuda/convolution/fft_product_wgmma.py.
struct alignas(64) WgmmaProductParams {
  TensorMap a;           // floats of a row, k, planes: a box of 32 x 16 x 1, zeros beyond
  TensorMap b;
  Complex<float>* c;
  int32 rows;
  int32 column_pitch;    // of C; a multiple of 16 bytes
  int32 steps;           // stages of a sum
  int32 row_tiles;
  int32 column_tiles;
  int32 tiles;           // of all planes
  int32 conjugate;       // conj(A) * B instead
  int32 accumulate;      // add to what C holds
};

// Of a tile consumers share the columns; or, where kTakeTurns, each has all 64 of every other stage, and they add up at the end.
template <bool kTakeTurns>
struct WgmmaProduct {
  using Row = wgmma::Row;
  using Split = tf32_split::OrdinarySplit;  // transforms have spread what is not finite over the tile as NaN
  static constexpr int kConsumers = 2, kWarps = kWarpgroup / 32;
  static constexpr int kRows = 64, kColumns = kTakeTurns ? 64 : 64 * kConsumers;
  static constexpr int kTurn = kTakeTurns ? kConsumers : 1;  // stages from one of a consumer's to its next
  static constexpr int kSlab = 16;  // k of a stage, and complex numbers of a box's row
  static constexpr int kRowBoxes = kRows / kSlab, kColumnBoxes = kColumns / kSlab;
  static constexpr int kStages = kTakeTurns ? 8 : 6, kSplits = kTakeTurns ? 4 : 3;
  static_assert(kStages % kTurn == 0 && kSplits % kTurn == 0);  // or a consumer would let a phase of a place pass
  static constexpr int kBoxesOfWarp = kColumnBoxes / kWarps;    // of columns, that a splitters' warp has copied
  static constexpr int kSplitterRegisters = 72, kConsumerRegisters = 216;
  static_assert(kSlab * sizeof(Complex<float>) == sizeof(Row) && kRowBoxes == kWarps);

  struct Turns {
    float4 sums[kConsumers][kRows / 8][kWarpgroup];  // that one gives the other
  };
  struct NoTurns {};

  struct Shared {
    // Every box begins at a multiple of 1024 bytes.
    Row columns[kStages][kColumnBoxes][kSlab];
    Row rows[kStages][kRowBoxes][kSlab];
    Row split[kSplits][2][kRows];  // [..][nearest, rest]; of eight k, a row has re and then im
    [[no_unique_address]] std::conditional_t<kTakeTurns, Turns, NoTurns> turns;
    Mbarrier landed[kStages];
    Mbarrier filled[kSplits];
    Mbarrier free[kSplits];  // and so is the stage that it was made of
  };
  static constexpr uint32 kWarpsBytes = sizeof(Row) * kSlab * (1 + kBoxesOfWarp);  // of a stage, what a splitters' warp has copied

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ int warp() { return static_cast<int>(threadIdx.x) % kWarpgroup / 32; }

  // The block's tiles. Those of rows are fastest: blocks that run at the same time then share columns of A, the larger operand, in the L2
  // cache.
  struct Walk {
    const WgmmaProductParams& params;
    int32 tile, plane, first_row, first_column;

    __device__ explicit Walk(const WgmmaProductParams& params) : params(params), tile(static_cast<int32>(blockIdx.x)) { find(); }
    __device__ __forceinline__ bool is_over() const { return tile >= params.tiles; }
    __device__ __forceinline__ void advance() { tile += static_cast<int32>(gridDim.x), find(); }

  private:
    __device__ __forceinline__ void find() {
      const int32 of_columns = tile / params.row_tiles;
      first_row = (tile - of_columns * params.row_tiles) * kRows;
      plane = of_columns / params.column_tiles;
      first_column = (of_columns - plane * params.column_tiles) * kColumns;
    }
  };
  static __device__ int32 stages_of_block(const WgmmaProductParams& params) {
    const auto block = static_cast<int32>(blockIdx.x), blocks = static_cast<int32>(gridDim.x);
    return (params.tiles - block + blocks - 1) / blocks * params.steps;
  }

  // Copies stage after stage, of which every splitters' warp has a part copied, by one lane.
  struct Copies {
    Walk walk;
    int32 step = 0;
    wgmma::Position<kStages> to;

    __device__ explicit Copies(const WgmmaProductParams& params) : walk(params) {}

    __device__ __forceinline__ void begin_next(Shared& shared) {
      if (walk.is_over()) return;
      Mbarrier& landed = shared.landed[to.stage];
      arrive_expecting(landed, kWarpsBytes);
      const auto copy = [&](Row (&box)[kSlab], const TensorMap& map, int32 first) {
        load_window(&box, map, landed, 2 * first, step * kSlab, walk.plane);
      };
      copy(shared.rows[to.stage][warp()], walk.params.b, walk.first_row + warp() * kSlab);
#pragma unroll
      for (int i = 0; i < kBoxesOfWarp; ++i) {
        const int box = warp() * kBoxesOfWarp + i;
        copy(shared.columns[to.stage][box], walk.params.a, walk.first_column + box * kSlab);
      }
      to.advance();
      if (++step == walk.params.steps) step = 0, walk.advance();
    }
  };

  // A lane's two rows, of a warp's four k, as both parts. Row 8 j + i of the parts is row 8 j + i of the tile, or (i ^ 1) where j is odd.
  static __device__ __forceinline__ void split_rows(const Row (&boxes)[kRowBoxes][kSlab], Row (&to)[2][kRows]) {
    const int half = warp() / 2, odd = warp() % 2;
    float4 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = half * 8 + 2 * i + odd;
      pairs[i] = *reinterpret_cast<const float4*>(boxes[lane() / 8][k].bytes + ((lane() % 8) ^ (2 * i + odd)) * 16);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = 2 * lane() + (e ^ (lane() / 4 % 2));
#pragma unroll
      for (int im = 0; im < 2; ++im) {
        const auto value = [&](int i) {
          const float4& pair = pairs[i];
          return Split(__float_as_uint(e == 0 ? (im == 0 ? pair.x : pair.y) : (im == 0 ? pair.z : pair.w)));
        };
        const Split parts[] = {value(0), value(1), value(2), value(3)};
        const int place = ((half * 4 + im * 2 + odd) ^ (row % 8)) * 16;
        *reinterpret_cast<uint4*>(to[0][row].bytes + place) = {
            parts[0].nearest, parts[1].nearest, parts[2].nearest, parts[3].nearest};
        *reinterpret_cast<uint4*>(to[1][row].bytes + place) = {parts[0].rest, parts[1].rest, parts[2].rest, parts[3].rest};
      }
    }
  }
  static __device__ __forceinline__ void split(const WgmmaProductParams& params, Shared& shared) {
    Copies copies(params);
    if (lane() == 0) {
#pragma unroll 1
      for (int stage = 0; stage < kStages; ++stage) copies.begin_next(shared);
    }
    wgmma::Position<kStages> from;
    wgmma::Position<kSplits> to{0, 1};  // all are free, as if the phase before had ended
    const int32 stages = stages_of_block(params);
    for (int32 stage = 0; stage < stages; ++stage) {
      wait(shared.free[to.stage], to.parity);
      if (lane() == 0 && stage >= kSplits) copies.begin_next(shared);
      __syncwarp();
      wait(shared.landed[from.stage], from.parity);
      split_rows(shared.rows[from.stage], shared.split[to.stage]);
      publish_to_engine();
      __syncwarp();
      if (lane() == 0) arrive(shared.filled[to.stage]);
      from.advance();
      to.advance();
    }
  }

  // A lane's columns 2 g and 2 g + 1 of half a stage, eight k, as instructions take them: [nearest, rest][register].
  struct Half {
    uint32 re[2][4], im[2][4];

    __device__ __forceinline__ void read(const Row (&box)[kSlab], int half) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int k = lane() % 4 * 2 + odd;
        const float4 pair = *reinterpret_cast<const float4*>(box[half * 8 + k].bytes + ((lane() / 4) ^ k) * 16);
        keep(re, odd * 2, pair.x);
        keep(im, odd * 2, pair.y);
        keep(re, odd * 2 + 1, pair.z);
        keep(im, odd * 2 + 1, pair.w);
      }
    }

  private:
    static __device__ __forceinline__ void keep(uint32 (&to)[2][4], int i, float value) {
      const Split split(__float_as_uint(value));
      to[0][i] = split.nearest, to[1][i] = split.rest;
    }
  };

  // Descriptors of a stage's rows: of half a stage, real parts are 32 bytes along the row, and imaginary ones the next.
  struct Rows {
    static constexpr int kHalf = 2 * kMatrixStep<Major::kK>, kIm = kMatrixStep<Major::kK>;
    uint64 nearest, rest;

    __device__ __forceinline__ explicit Rows(const Row (&split)[2][kRows])
        : nearest(matrix_descriptor(shared_address(split[0]))), rest(matrix_descriptor(shared_address(split[1]))) {}
  };

  struct Sums {
    float re[kRows / 2], im[kRows / 2];  // as warpgroup_matrix.cuh says

    // Those of a stage, whose products have ended.
    __device__ __forceinline__ void add(Sums& of_stage) {
      settle_sums(of_stage.re);
      settle_sums(of_stage.im);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) re[i] += of_stage.re[i], im[i] += of_stage.im[i];
    }
  };

  // Begin the products of half a stage; those of the first one start from 0. None follows one of the same sums.
  static __device__ __forceinline__ void multiply(Sums& sums, const Half& a, const Rows& b, int half) {
    const auto multiply_parts = [&](const uint32 (&re)[4], const uint32 (&im)[4], uint64 of_rows, bool add) {
      multiply_rows_tf32(sums.re, re, of_rows, add);
      multiply_rows_tf32(sums.im, im, of_rows, add);
      multiply_rows_tf32(sums.re, im, of_rows + Rows::kIm, true);
      multiply_rows_tf32<Sign::kMinus>(sums.im, re, of_rows + Rows::kIm, true);
    };
    const uint64 nearest = b.nearest + half * Rows::kHalf, rest = b.rest + half * Rows::kHalf;
    fence_sums();
    multiply_parts(a.re[1], a.im[1], nearest, half > 0);
    multiply_parts(a.re[0], a.im[0], rest, true);
    multiply_parts(a.re[0], a.im[0], nearest, true);
    commit_products();
  }

  static __device__ __forceinline__ void consume(const WgmmaProductParams& params, Shared& shared, int consumer) {
    const int box = kTakeTurns ? warp() : consumer * kWarps + warp();
    int32 next = kTakeTurns ? consumer : 0;  // the tile's first stage of this consumer
    wgmma::Position<kStages> from{next, 0};
    wgmma::Position<kSplits> at{next, 0};
    int32 left = (stages_of_block(params) - next + kTurn - 1) / kTurn;
    Half first, second;
    if (!kTakeTurns || left > 0) {
      wait(shared.landed[from.stage], 0);
      first.read(shared.columns[from.stage][box], 0);
      wait(shared.filled[at.stage], 0);
    }
    for (Walk walk(params); !walk.is_over(); walk.advance()) {
      Sums sums{};
      for (; next < params.steps; next += kTurn) {
        const Rows rows(shared.split[at.stage]);
        Mbarrier& free = shared.free[at.stage];
        Sums of_stage;
        multiply(of_stage, first, rows, 0);
        second.read(shared.columns[from.stage][box], 1);
        multiply(of_stage, second, rows, 1);
        // What follows the last one is that one once more, which nobody multiplies.
        if (--left > 0) {
#pragma unroll
          for (int i = 0; i < kTurn; ++i) from.advance(), at.advance();
        }
        wait(shared.landed[from.stage], from.parity);
        wait_for_products<1>();
        first.read(shared.columns[from.stage][box], 0);
        wait(shared.filled[at.stage], at.parity);
        wait_for_products<0>();
        __syncwarp();  // all lanes have read the stage
        if (lane() == 0) arrive(free);
        sums.add(of_stage);
      }
      next -= params.steps;
      if constexpr (kTakeTurns) {
        float re[kRows / 4], im[kRows / 4];
        add_up(re, im, sums, shared.turns, consumer);
        write(re, im, walk, walk.first_row + consumer * (kRows / 2), walk.first_column + box * kSlab);
      } else {
        write(sums.re, sums.im, walk, walk.first_row, walk.first_column + box * kSlab);
      }
      __syncwarp();  // the next products are the whole warp's
    }
  }

  // All sums of half of the rows, the consumer's own and those that the other has given; it gives its own of the other half.
  static __device__ __forceinline__ void add_up(
      float (&re)[kRows / 4], float (&im)[kRows / 4], const Sums& sums, Turns& turns, int consumer) {
    constexpr int kHalf = kRows / 4, kBarrier = 1;
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const auto given = [&](const float (&of)[kRows / 2], int i) { return consumer == 0 ? of[kHalf + i] : of[i]; };
    const auto kept = [&](const float (&of)[kRows / 2], int i) { return consumer == 0 ? of[i] : of[kHalf + i]; };
#pragma unroll
    for (int i = 0; i < kHalf; i += 2) {
      turns.sums[consumer][i / 2][thread] = {given(sums.re, i), given(sums.im, i), given(sums.re, i + 1), given(sums.im, i + 1)};
    }
    synchronize<kConsumers * kWarpgroup>(kBarrier);
#pragma unroll
    for (int i = 0; i < kHalf; i += 2) {
      const float4 others = turns.sums[1 - consumer][i / 2][thread];
      re[i] = kept(sums.re, i) + others.x, im[i] = kept(sums.im, i) + others.y;
      re[i + 1] = kept(sums.re, i + 1) + others.z, im[i + 1] = kept(sums.im, i + 1) + others.w;
    }
    synchronize<kConsumers * kWarpgroup>(kBarrier);  // before the next tile's are written over them
  }

  // A lane's two columns, 16 bytes, of every row of which it has sums; the first ones are the warp's.
  template <int kSums>
  static __device__ __forceinline__ void write(
      const float (&re)[kSums], const float (&im)[kSums], const Walk& walk, int32 first_row, int32 first_column) {
    const WgmmaProductParams& params = walk.params;
    const int32 x = first_column + lane() / 4 * 2, y = first_row + lane() % 4 * 2, rows = params.rows - y;
    if (x >= params.column_pitch) return;
    const float sign = params.conjugate ? -1.0F : 1.0F;
    const int64 pitch = params.column_pitch;
    Complex<float>* const c = params.c + ((static_cast<int64>(walk.plane) * params.rows + y) * pitch + x);
    const auto each_pair = [&](const auto& visit) {
      Complex<float>* eight = c;
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j, eight += 8 * pitch) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = e ^ (j % 2), left = 4 * j + e, right = left + 2;
          if (8 * j + i >= rows) continue;
          const float4 pair = {re[left], sign * im[left], re[right], sign * im[right]};
          visit(reinterpret_cast<float4*>(eight + i * pitch), pair);
        }
      }
    };
    if (params.accumulate) {
      each_pair([](float4* to, const float4& pair) {
        const float4 before = *to;
        *to = {before.x + pair.x, before.y + pair.y, before.z + pair.z, before.w + pair.w};
      });
    } else {
      each_pair([](float4* to, const float4& pair) { *to = pair; });
    }
  }

  static __device__ __forceinline__ void run(const WgmmaProductParams& params, Shared& shared) {
    if (threadIdx.x == 0) {
      prefetch(params.a);
      prefetch(params.b);
      for (Mbarrier& barrier : shared.landed) make_barrier(barrier, kWarps);
      for (Mbarrier& barrier : shared.filled) make_barrier(barrier, kWarps);
      for (Mbarrier& barrier : shared.free) make_barrier(barrier, kConsumers / kTurn * kWarps);
      publish_barriers();
    }
    __syncthreads();
    wait_for_previous();
    const int warpgroup = warpgroup_index();
    if (warpgroup == kConsumers) {
      leave_registers<kSplitterRegisters>();
      split(params, shared);
    } else {
      take_registers<kConsumerRegisters>();
      consume(params, shared, warpgroup);
    }
  }
};

}  // namespace dnncore::fft
