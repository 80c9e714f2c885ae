"""Convolution on CUDA: one module per algorithm; `plain` and `fused` list them."""
