// What pooling does with a window; MODES in pooling_planar.py.
#pragma once

namespace dnncore {

enum class PoolingMode { kMax, kAverageIncludePadding, kAverageExcludePadding };

}  // namespace dnncore
