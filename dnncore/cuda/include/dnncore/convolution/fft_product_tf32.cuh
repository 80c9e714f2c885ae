// The products of fft_product.cuh by tensor cores: C[row][column] = sum over k of A[k][column] * conj(B[k][row]), each product of
// fp32 made of three of tf32 (tf32_split.cuh). Slabs of A and B come into shared memory as there, round a ring.
//
// A complex product is two real ones of twice as many summands, real and imaginary parts being summands of their own:
//
//     re C = sum of  br ar + bi ai        im C = sum of  br ai + bi (-ar)
//
// so that a warp reads and splits each number once, and multiplies the same (br, bi) by (ar, ai) and by (ai, -ar). An instruction
// (mma.sync) takes eight summands: four k, of which lane 4 g + t has k = t, its real part as summand t and its imaginary part as t + 4.
// Which row or column of an instruction is which of the tile's is free, so it is what makes accesses wide: a lane reads two neighbours,
// 16 bytes, which are rows g and g + 8 of one instruction or columns g of two, and its sums are of two neighbours that lie beside
// those of lane t + 1. Of 16 neighbours
//
//     k = t      0 0  2 2  4 4  6 6  1 1  3 3  5 5  7 7       are those of lanes g
//
// and where the rows of a slab lie 16 bytes further apart than a multiple of 128, eight lanes, of two g and four k, meet all banks.
//
// The 16 rows of an instruction are the tile's rows. Where these are few, as the channels of a net's first layer, they are its 8 columns
// instead, and what comes out is the conjugate.
//
// Tensor cores cut sums off where fp32 rounds them; so those of a slab, of 32 summands, are made by themselves, and then added to the
// others by the units of fp32. The three products of a sum wait for one another, so those of all other sums stand between them.
#pragma once

#include "dnncore/convolution/fft_slabs.cuh"
#include "dnncore/convolution/tf32_split.cuh"
#include "dnncore/ptx/matrix.cuh"

namespace dnncore::fft {

// A block is kWarpRows x kWarpColumns warps. Of a warp's tile one side is kSixteens times the 16 rows of an instruction, the other one
// kEights times its 8 columns: the rows, or where kFewRows the columns.
template <int kWarpRows, int kWarpColumns, int kSixteens, int kEights, int kRing, bool kFewRows>
struct Tf32Product {
  using Number = Complex<float>;
  using Split = tf32_split::OrdinarySplit;  // transforms have spread what is not finite over the tile as NaN
  static constexpr int kThreads = 32 * kWarpRows * kWarpColumns;
  static constexpr int kRowsOfWarp = kFewRows ? 8 * kEights : 16 * kSixteens;
  static constexpr int kColumnsOfWarp = kFewRows ? 16 * kSixteens : 8 * kEights;
  static constexpr int kRows = kWarpRows * kRowsOfWarp, kColumns = kWarpColumns * kColumnsOfWarp;
  static constexpr int kSlab = 16, kStages = kRing;
  static constexpr int kStep = 4;    // k of an instruction
  static constexpr int kVector = 2;  // numbers in 16 bytes
  static_assert(sizeof(Number) * kVector == sizeof(float4));
  static_assert(kFewRows ? kWarpRows * kEights == 1 : kEights % 2 == 0);
  // Of eight rows lanes read 8 bytes each, 16 of them at a time: four neighbours of four k.
  static constexpr int kColumnPitch = kColumns + kVector, kRowPitch = kRows + (kFewRows ? 2 : 1) * kVector;
  static_assert(kColumns % 16 == 0 && (kFewRows || kRows % 16 == 0));

  template <int kPitch>
  using Slab = Number[kSlab][kPitch];

  struct Shared {
    alignas(16) Slab<kColumnPitch> a[kStages];
    alignas(16) Slab<kRowPitch> b[kStages];
  };

  static __device__ int warp_row() { return static_cast<int>(threadIdx.x) / 32 / kWarpColumns * kRowsOfWarp; }
  static __device__ int warp_column() { return static_cast<int>(threadIdx.x) / 32 % kWarpColumns * kColumnsOfWarp; }
  static __device__ int g() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  static __device__ int t() { return static_cast<int>(threadIdx.x) % 4; }
  // Of 16, the first of the two that are lane 4 g + t's.
  static __device__ int pair_of_g() { return g() / 2 * kVector + g() % 2 * 8; }

  using LoadA = SlabLoader<Tf32Product, kColumns, kColumnPitch>;
  using LoadB = SlabLoader<Tf32Product, kRows, kRowPitch>;

  static __device__ __forceinline__ void copy_vector(Number* to, const Number* from, bool inside) {
    copy_vector_async(reinterpret_cast<float4*>(to), from, inside);
  }

  // What a lane gives to instructions in four k: of their rows the registers are re and im of row g between those of row g + 8.
  struct Sixteens {
    uint32 nearest[kSixteens][4], rest[kSixteens][4];

    __device__ __forceinline__ explicit Sixteens(const Number* of_warp) {
#pragma unroll
      for (int i = 0; i < kSixteens; ++i) {
        const float4 pair = *reinterpret_cast<const float4*>(of_warp + i * 16 + pair_of_g());
        const float values[] = {pair.x, pair.z, pair.y, pair.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const Split split(__float_as_uint(values[e]));
          nearest[i][e] = split.nearest, rest[i][e] = split.rest;
        }
      }
    }
  };

  // And of their columns, as many as lie beside each other: re and im of column g.
  struct Eights {
    static constexpr int kCount = kFewRows ? 1 : kVector;
    uint32 nearest[kCount][2], rest[kCount][2];

    __device__ __forceinline__ explicit Eights(const Number* of_warp) {
      if constexpr (kFewRows) {
        keep(0, of_warp[g()]);
      } else {
        const float4 pair = *reinterpret_cast<const float4*>(of_warp + pair_of_g());
        keep(0, {pair.x, pair.y});
        keep(1, {pair.z, pair.w});
      }
    }

  private:
    __device__ __forceinline__ void keep(int j, Number number) {
      const Split re(__float_as_uint(number.re)), im(__float_as_uint(number.im));
      nearest[j][0] = re.nearest, nearest[j][1] = im.nearest;
      rest[j][0] = re.rest, rest[j][1] = im.rest;
    }
  };

  struct Sums {
    float at[kSixteens][kEights][2][4] = {};  // [..][..][re, im][row of the instruction and column of it]

    __device__ __forceinline__ void multiply_add(const Slab<kColumnPitch>& a, const Slab<kRowPitch>& b) {
      Sums of_slab;
      of_slab.multiply(a, b);
#pragma unroll
      for (int i = 0; i < kSixteens * kEights * 8; ++i) (&at[0][0][0][0])[i] += (&of_slab.at[0][0][0][0])[i];
    }

  private:
    __device__ __forceinline__ void multiply(const Slab<kColumnPitch>& a, const Slab<kRowPitch>& b) {
#pragma unroll
      for (int k = 0; k < kSlab; k += kStep) {
        const Number* const rows = &b[k + t()][warp_row()];
        const Number* const columns = &a[k + t()][warp_column()];
        const Sixteens x(kFewRows ? columns : rows);
#pragma unroll
        for (int j = 0; j < kEights; j += Eights::kCount) {
          const Eights y((kFewRows ? rows : columns) + j * 8);
          multiply(j, x.rest, y.nearest);
          multiply(j, x.nearest, y.rest);
          multiply(j, x.nearest, y.nearest);
        }
      }
    }

    __device__ __forceinline__ void multiply(int first, const uint32 (&x)[kSixteens][4], const uint32 (&y)[Eights::kCount][2]) {
      constexpr uint32 kSign = 0x80000000U;
#pragma unroll
      for (int j = 0; j < Eights::kCount; ++j) {
#pragma unroll
        for (int i = 0; i < kSixteens; ++i) {
          multiply_add_tf32(at[i][first + j][0], x[i], y[j][0], y[j][1]);
          multiply_add_tf32(at[i][first + j][1], x[i], y[j][1], y[j][0] ^ kSign);
        }
      }
    }
  };

  static __device__ void write(const Sums& sums, int plane, int first_row, int first_column, const ProductParams& params) {
    first_row += warp_row();
    first_column += warp_column();
    const float sign = (params.conjugate != 0) == kFewRows ? 1.0F : -1.0F;
    Number* const c = static_cast<Number*>(params.c) + static_cast<int64>(plane) * params.rows * params.column_pitch;
    const auto write_pair = [&](int row, int column, Number left, Number right) {
      const int y = first_row + row, x = first_column + column;
      if (y >= params.rows || x >= params.column_pitch) return;
      auto* const to = reinterpret_cast<float4*>(c + (static_cast<int64>(y) * params.column_pitch + x));
      float4 pair = {left.re, sign * left.im, right.re, sign * right.im};
      if (params.accumulate) {
        const float4 before = *to;
        pair = {before.x + pair.x, before.y + pair.y, before.z + pair.z, before.w + pair.w};
      }
      *to = pair;
    };
    const auto number = [&](int i, int j, int e) { return Number{sums.at[i][j][0][e], sums.at[i][j][1][e]}; };
#pragma unroll
    for (int i = 0; i < kSixteens; ++i) {
      // Of an instruction's rows a lane has the pair of g, of its columns 2 t and 2 t + 1.
      if constexpr (kFewRows) {
#pragma unroll
        for (int e = 0; e < 2; ++e) write_pair(2 * t() + e, i * 16 + pair_of_g(), number(i, 0, e), number(i, 0, e + 2));
      } else {
#pragma unroll
        for (int j = 0; j < kEights; j += kVector) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            write_pair(i * 16 + pair_of_g() + e / 2, j * 8 + 2 * t() + e % 2 * 8, number(i, j, e), number(i, j + 1, e));
          }
        }
      }
    }
  }
};

}  // namespace dnncore::fft
