// What one launch of the GEMM core computes; dnncore/cuda/gemm/params.py fills in these structs and mirrors them. A
// launch is C[row, column] = sum over k of A[row, k] * B[k, column], once for every phase and group. `column` and the
// reduction index k are numbers whose digits (mixed radix, fastest first) are dimensions of the tensors: an element of
// B lies at the sum of digit * stride over the digits of both and, when the operation pads, at spatial coordinates that
// are sums of digit * step in the same way; outside the bounds B is 0. The host decides which digits there are
// (dnncore/cuda/gemm/index_space.py):
//
//                      A    B    C     rows     column's digits    k's digits
//    forward           w    x    y     K / G    n, p, q            c, r, s
//    backward-data     w    dy   dx    C / G    n, h, w            k, r, s     a phase per remainder of h, w
//    backward-filter   dy   x    dw    K / G    c, r, s            n, p, q
//    matrix product    a    b    c     M        n                  k
#pragma once

#include "dnncore/common/element.cuh"
#include "dnncore/common/tensor.cuh"
#include "dnncore/gemm/epilogue.cuh"

namespace dnncore::gemm {

inline constexpr int kMaxDigits = 4;
inline constexpr int kMaxCoordinates = 3;
inline constexpr int kMaxPhases = 8;

// Along which index vectors of C (16 bytes in the compute type) can be stored at once if C's address allows it: the
// host found every aligned group of columns (rows) of a tile to be contiguous and aligned in C. Such a group lies
// wholly inside C or wholly outside.
enum class Store : uint32 { kSingle, kColumns, kRows };

// One dimension of a mixed-radix number below 2^31.
struct Digit {
  int64 b_stride;                // elements of B per step
  int64 other_stride;            // elements per step of C (column digits) or of A (reduction digits)
  int32 step[kMaxCoordinates];   // by how much a step moves B's spatial coordinates
  uint32 extent;
  uint32 magic;                  // ceil(2^shift / extent), shift = 31 + ceil(log2(extent))
  uint32 shift;

  // Exact for n < 2^31, because magic * extent exceeds 2^shift by less than extent <= 2^(shift - 31).
  __device__ uint32 quotient(uint32 n) const {
    return static_cast<uint32>((static_cast<uint64>(n) * magic) >> shift);
  }
};

// A dense product. A strided backward-data convolution consists of several, one for each remainder of the coordinates
// by the strides.
struct Phase {
  Digit column[kMaxDigits];
  Digit reduction[kMaxDigits];
  int64 a_offset;
  int64 b_offset;                // may be negative: the coordinates start in the padding
  int64 c_offset;
  int64 c_column_step;           // elements of C from each column to the next; 0 where its digits have to be asked
  int32 first[kMaxCoordinates];  // B's spatial coordinates where all digits are 0
  uint32 columns;
  uint32 reduction_length;
  uint32 first_entry;            // of the table in the workspace, where there is one
};

struct Params {
  Blend blend;
  const void* a;
  const void* b;
  void* c;
  void* parts;                    // of a joined kernel: the sums of the parts of the reduction (parts.cuh)
  uint32* tickets;                // the same: a counter for each tile, 0 before the launch and after it
  int64 a_row_stride;
  int64 c_row_stride;
  int64 a_group_stride;
  int64 b_group_stride;
  int64 c_group_stride;
  int64 split_stride;             // elements from the sums of one part of the reduction to those of the next
  int32 bounds[kMaxCoordinates];  // B's spatial extents
  uint32 rows;
  uint32 row_tiles;
  uint32 column_tiles;            // of the phase with the most columns
  uint32 groups;
  uint32 splits;                  // parts into which the reduction is cut
  uint32 split_length;            // a multiple of the tile's depth
  Store store;
  Phase phase[kMaxPhases];
  Epilogue epilogue;              // of a fused convolution, with one phase; extended kernels read it and the table
  void* table;                    // null, or the entries of every phase's reduction indices
  ElementType output_type;        // of C; read where the operands have 16 or 8 bits
};

static_assert(sizeof(Digit) == 40);
static_assert(sizeof(Phase) == 376);
static_assert(sizeof(Params) == 144 + kMaxPhases * sizeof(Phase) + sizeof(Epilogue) + 16);

// Visit the digits of `number`, fastest first: visit(digit, value).
template <int kDigits, typename Visit>
__device__ void for_each_digit(uint32 number, const Digit (&digits)[kMaxDigits], Visit visit) {
#pragma unroll
  for (int i = 0; i < kDigits - 1; ++i) {
    const uint32 rest = digits[i].quotient(number);
    visit(digits[i], static_cast<int32>(number - rest * digits[i].extent));
    number = rest;
  }
  visit(digits[kDigits - 1], static_cast<int32>(number));
}

}  // namespace dnncore::gemm
