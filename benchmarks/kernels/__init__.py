"""Convolutions and matrix products beside PyTorch with cuDNN: `make bench-kernels`, `python -m benchmarks.kernels`."""
