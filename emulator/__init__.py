"""A CUDA device on the CPU: runs PTX with checks, under a libcuda.so.1 that unmodified PyCUDA talks to. See README.md."""
