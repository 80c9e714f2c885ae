"""Operations that move bytes and compute next to nothing: `python -m benchmarks.memory_bound`."""
