"""What runs on a CUDA device: driver, contexts, memory, streams, compiled kernels, graphs, and the binder that launches calls."""
