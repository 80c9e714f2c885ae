"""The CUDA backend: devices, memory and streams through PyCUDA, kernels from the `.cuh` templates in `include/`.

Importing this package needs neither PyCUDA nor a driver; opening a device does.
"""
