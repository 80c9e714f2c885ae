"""What an operation costs the host, beside PyTorch in the same run: `python -m benchmarks.host`."""
