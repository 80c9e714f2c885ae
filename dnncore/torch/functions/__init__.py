"""Functions on PyTorch's tensors, each with its gradient; one module a family."""
