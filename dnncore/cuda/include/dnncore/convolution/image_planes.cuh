// Planes of float32, as images come into a net, laid out for the matrix units of sm_90 as chunks of pixels of 16 bits: what
// image_rows.cuh does with channels-last images, for those that lie channel by channel. The copy engine brings the window of each
// plane that some rows of outputs meet, zeros around the image included, and threads take a chunk's values out of as many planes as
// there are channels, and round them on the way:
//
//       window of shared memory, a row of x                        stage
//       red    [ r0 r1 r2 r3 ... ]  first plane                    [ r0 g0 b0 r1 g1 b1 r2 g2 ] [ b2 r3 g3 ... ]   of output 0
//       green  [ g0 g1 g2 g3 ... ]  `plane` values further on      [ r2 g2 b2 ...                                of output 1
//       blue   [ b0 b1 b2 b3 ... ]
//
// A window begins at whole 16 bytes of a row of x, which need not be the first column that a tap meets. Its rows are an odd number of
// times 8 values where strides are small, so that a warp, which reads 8 outputs of up to 4 rows at a time, finds few of them in one
// bank.
#pragma once

#include "dnncore/convolution/image_rows.cuh"
#include "dnncore/ptx/matrix_store.cuh"

namespace dnncore::wgmma {

// IMAGE_PLANES of convolution/image_planes.py.
struct ImagePlanes {
  int32 window_bytes;
  int32 plane;          // values of a window, from a channel to the next
  int32 row;            // and from a row to the next
  int32 column_step;    // from an output to the one beside it
  int32 first;          // column of a window that the first tap of its first output meets
  int32 columns_before; // of the padding, that the first window of a row begins with
};

// A thread's chunks: one of one of 8 neighbouring outputs, in every so-manyeth row of a stage.
template <typename T>
class PlaneChunks {
  static constexpr int kChunk = wgmma::kChunk<T>;
  static constexpr int kTogether = 2;  // rows that are read before the first is rounded
  static_assert(sizeof(T) == 2);

public:
  // For rows of filters of so many values, those of all channels of a tap together.
  __device__ __forceinline__ PlaneChunks(const ImageRows& x, const ImagePlanes& planes, int32 channels, int32 values) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, place = thread / kChunkOutputs;
    const bool is_idle = place >= x.rows_at_once * x.chunks;
    const int chunk = place % x.chunks;
    row_ = is_idle ? x.stage_rows : place / x.chunks;
    to_ = chunk * kChunkOutputs + thread % kChunkOutputs;
#pragma unroll
    for (int j = 0; j < kChunkWords; ++j) kept_[j] = chunk + 1 == x.chunks ? x.tail[j] : ~0U;
    const int32 column = planes.first + thread % kChunkOutputs * planes.column_step;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int32 value = min(chunk * kChunk + i, values - 1);  // behind the last there is nothing that is kept
      from_[i] = value % channels * planes.plane + column + value / channels;
    }
  }

  __device__ __forceinline__ void lay_out(const ImageRows& x, const ImagePlanes& planes, const float* window, uint4* stage) const {
    const float* from = window + row_ * planes.row;
    uint4* to = stage + row_ * x.pitch * kChunkOutputs + to_;
#pragma unroll 1
    for (int row = row_; row < x.stage_rows; row += kTogether * x.rows_at_once) {
      float values[kTogether][kChunk];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const float* const of_row = row + k * x.rows_at_once < x.stage_rows ? from + k * x.rows_at_once * planes.row : from;
#pragma unroll
        for (int i = 0; i < kChunk; ++i) values[k][i] = of_row[from_[i]];
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (row + k * x.rows_at_once >= x.stage_rows) break;
        uint32 words[kChunkWords];
#pragma unroll
        for (int j = 0; j < kChunkWords; ++j) words[j] = narrow_pair<T>(values[k][2 * j], values[k][2 * j + 1]) & kept_[j];
        to[k * x.rows_at_once * x.pitch * kChunkOutputs] = {words[0], words[1], words[2], words[3]};
      }
      from += kTogether * x.rows_at_once * planes.row, to += kTogether * x.rows_at_once * x.pitch * kChunkOutputs;
    }
  }

private:
  int32 from_[kChunk];  // where a row's values are in a window
  uint32 kept_[kChunkWords];
  int row_;
  int to_;
};

}  // namespace dnncore::wgmma
