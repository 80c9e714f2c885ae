// Minimal filtering: what the Winograd kernels share. An m x m tile of outputs of a 3x3 correlation is
//
//    A^T [ (G g G^T) . (B^T d B) ] A
//
// with d the (m + 2) x (m + 2) inputs under the tile, g the filter and . the product element by element: (m + 2)^2
// multiplications in place of 9 m^2. The sum over the channels goes inside the brackets, where each of the (m + 2)^2
// points is a product of two matrices. The adjoint gives the filter's gradient, G^T [ (A e A^T) . (B^T d B) ] G, where
// e is the tile's gradient. A larger m saves multiplications and costs accuracy and registers.
//
//    m = 2     input     0 1 2 3 4 5 6 7         output    0 1 2 3 4 5
//              tile 0    [-----]                           [-]
//              tile 1        [-----]                           [-]
//              tile 2            [-----]                           [-]
//
//    each point:   sums [filters][tiles] = filters [filters][channels] * inputs [channels][tiles]
//
// Source: A. Lavin, S. Gray, arXiv 1509.09308. F(2x2) interpolates at 0, 1, -1 and infinity, as there. F(4x4)
// interpolates at 0, +-5/8, +-3/2 and infinity instead of 0, +-1, +-2 and infinity, which leaves about a quarter of the
// error (dnncore/cuda/convolution/winograd_error.py).
#pragma once

#include "dnncore/convolution/finish.cuh"

namespace dnncore::winograd {

// A correlation; mirrored by PARAMS in dnncore/cuda/convolution/winograd_geometry.py. For backward-data the input is
// dy, the output dx and the filter rotated, and `filters` and `channels` change places.
struct Params {
  Blend blend;
  Epilogue epilogue;         // of a fused convolution
  void* input;
  void* filter;
  void* output;
  void* input_points;        // of the kernels with a workspace: [point][group][channel][tile],
  void* filter_points;       // [point][group][channel][filter] (of a gradient [point][group][filter][channel]),
  void* output_points;       // and [point][group][filter][tile]
  int64 input_strides[4];    // image, channel, row, column
  int64 filter_strides[4];   // filter, channel, row, column; those of a rotated one are negative
  int64 output_strides[4];   // image, filter, row, column
  int64 filter_offset;       // elements to the filter's first tap
  int64 filter_group_stride;
  Divisor tiles;             // of all images; below 2^31
  Divisor channels;          // per group
  Divisor filters;           // per group
  SmallDivisor tile_columns;
  SmallDivisor tile_rows;
  SmallDivisor filter_blocks;
  SmallDivisor tile_blocks;
  int32 groups;
  int32 input_rows;
  int32 input_columns;
  int32 output_rows;
  int32 output_columns;
  int32 top;                 // padding; negative where the first outputs look past the first inputs
  int32 left;
  int32 tap_step;            // 1 or -1 where a filter's nine taps are that far apart, else 0
  int32 dense_rows;          // whether neighbouring inputs of a row are contiguous
  int32 pairs;               // whether outputs 2 i and 2 i + 1 of every row are contiguous and begin at an even element
  int32 unused;
};

// Where the outputs of a tile begin.
struct Place {
  int32 image;
  int32 row;
  int32 column;

  template <int kOutputs>
  static __device__ __forceinline__ Place of(int32 tile, const Params& params) {
    const SmallQuotientRemainder line = divide(tile, params.tile_columns);
    const SmallQuotientRemainder image = divide(line.quotient, params.tile_rows);
    return {image.quotient, image.remainder * kOutputs, line.remainder * kOutputs};
  }
};

// Transform the columns of a matrix, then the rows of what comes out.
template <int kIn, int kOut, typename C, typename Axis>
__device__ __forceinline__ void transform(const C (&in)[kIn][kIn], C (&out)[kOut][kOut], Axis axis) {
  C lines[kOut][kIn];
#pragma unroll
  for (int j = 0; j < kIn; ++j) {
    C column[kIn], transformed[kOut];
#pragma unroll
    for (int i = 0; i < kIn; ++i) column[i] = in[i][j];
    axis(column, transformed);
#pragma unroll
    for (int i = 0; i < kOut; ++i) lines[i][j] = transformed[i];
  }
#pragma unroll
  for (int i = 0; i < kOut; ++i) axis(lines[i], out[i]);
}

// The outputs of a tile that is written from `target` on, after the epilogue; a residual lies as the output does.
template <typename T, int kOutputs>
__device__ __forceinline__ void finish_tile(
    const Params& params, int64 filter, const T* target, int32 rows, int32 columns,
    Compute<T> (&outputs)[kOutputs][kOutputs]) {
  const T* const z = static_cast<const T*>(params.epilogue.z) + (target - static_cast<const T*>(params.output));
  const auto residual = [&](int i) {
    const T* const from = z + (i / kOutputs * params.output_strides[2] + i % kOutputs * params.output_strides[3]);
    return i / kOutputs < rows && i % kOutputs < columns ? widen(*from) : Compute<T>(0);
  };
  finish<T, 1>(
      params.epilogue, filter, residual, reinterpret_cast<Compute<T>(&)[kOutputs * kOutputs]>(outputs));
}

// F(2, 3) along one axis, at the points 0, 1, -1 and infinity.
struct F2 {
  static constexpr int kOutputs = 2;
  static constexpr int kPoints = 4;

  struct Filter {  // G
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&g)[3], C (&u)[4]) const {
      const C even = C(0.5) * (g[0] + g[2]), odd = C(0.5) * g[1];
      u[0] = g[0];
      u[1] = even + odd;
      u[2] = even - odd;
      u[3] = g[2];
    }
  };

  struct Input {  // B^T
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&d)[4], C (&v)[4]) const {
      v[0] = d[0] - d[2];
      v[1] = d[1] + d[2];
      v[2] = d[2] - d[1];
      v[3] = d[1] - d[3];
    }
  };

  struct Output {  // A^T
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&m)[4], C (&y)[2]) const {
      y[0] = m[0] + (m[1] + m[2]);
      y[1] = (m[1] - m[2]) - m[3];
    }
  };

  struct OutputGradient {  // A
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&e)[2], C (&t)[4]) const {
      t[0] = e[0];
      t[1] = e[0] + e[1];
      t[2] = e[0] - e[1];
      t[3] = -e[1];
    }
  };

  struct FilterGradient {  // G^T
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&u)[4], C (&g)[3]) const {
      const C even = C(0.5) * (u[1] + u[2]);
      g[0] = u[0] + even;
      g[1] = C(0.5) * (u[1] - u[2]);
      g[2] = even + u[3];
    }
  };
};

// F(4, 3) along one axis, at the points 0, a, -a, b, -b and infinity. What belongs to a and to -a are the sum and the
// difference of an even and an odd part.
struct F4 {
  static constexpr int kOutputs = 4;
  static constexpr int kPoints = 6;

  static constexpr double kA = 5.0 / 8, kA2 = kA * kA, kB = 3.0 / 2, kB2 = kB * kB;
  // Denominators of the Lagrange polynomials.
  static constexpr double kScale0 = 1 / (kA2 * kB2);
  static constexpr double kScaleA = 1 / (2 * kA2 * (kA2 - kB2)), kScaleB = 1 / (2 * kB2 * (kB2 - kA2));

  struct Filter {  // G
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&g)[3], C (&u)[6]) const {
      const C even_a = C(kScaleA) * g[0] + C(kScaleA * kA2) * g[2], odd_a = C(kScaleA * kA) * g[1];
      const C even_b = C(kScaleB) * g[0] + C(kScaleB * kB2) * g[2], odd_b = C(kScaleB * kB) * g[1];
      u[0] = C(kScale0) * g[0];
      u[1] = even_a + odd_a;
      u[2] = even_a - odd_a;
      u[3] = even_b + odd_b;
      u[4] = even_b - odd_b;
      u[5] = g[2];
    }
  };

  struct Input {  // B^T
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&d)[6], C (&v)[6]) const {
      const C even_a = d[4] - C(kB2) * d[2], odd_a = C(kA) * (d[3] - C(kB2) * d[1]);
      const C even_b = d[4] - C(kA2) * d[2], odd_b = C(kB) * (d[3] - C(kA2) * d[1]);
      v[0] = C(kA2 * kB2) * d[0] + (d[4] - C(kA2 + kB2) * d[2]);
      v[1] = even_a + odd_a;
      v[2] = even_a - odd_a;
      v[3] = even_b + odd_b;
      v[4] = even_b - odd_b;
      v[5] = C(kA2 * kB2) * d[1] + (d[5] - C(kA2 + kB2) * d[3]);
    }
  };

  struct Output {  // A^T
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&m)[6], C (&y)[4]) const {
      const C even_a = m[1] + m[2], odd_a = C(kA) * (m[1] - m[2]);
      const C even_b = m[3] + m[4], odd_b = C(kB) * (m[3] - m[4]);
      y[0] = m[0] + (even_a + even_b);
      y[1] = odd_a + odd_b;
      y[2] = C(kA2) * even_a + C(kB2) * even_b;
      y[3] = (C(kA2) * odd_a + C(kB2) * odd_b) + m[5];
    }
  };

  struct OutputGradient {  // A
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&e)[4], C (&t)[6]) const {
      const C even_a = e[0] + C(kA2) * e[2], odd_a = C(kA) * (e[1] + C(kA2) * e[3]);
      const C even_b = e[0] + C(kB2) * e[2], odd_b = C(kB) * (e[1] + C(kB2) * e[3]);
      t[0] = e[0];
      t[1] = even_a + odd_a;
      t[2] = even_a - odd_a;
      t[3] = even_b + odd_b;
      t[4] = even_b - odd_b;
      t[5] = e[3];
    }
  };

  struct FilterGradient {  // G^T
    template <typename C>
    __device__ __forceinline__ void operator()(const C (&u)[6], C (&g)[3]) const {
      const C even_a = C(kScaleA) * (u[1] + u[2]), even_b = C(kScaleB) * (u[3] + u[4]);
      g[0] = C(kScale0) * u[0] + (even_a + even_b);
      g[1] = C(kScaleA * kA) * (u[1] - u[2]) + C(kScaleB * kB) * (u[3] - u[4]);
      g[2] = (C(kA2) * even_a + C(kB2) * even_b) + u[5];
    }
  };
};

}  // namespace dnncore::winograd
