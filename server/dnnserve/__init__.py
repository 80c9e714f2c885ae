"""The inference server: dnncore's model packages over gRPC, batched dynamically, on every device of the machine.

Policy (`scheduling`) is a pure state machine; `scheduler` and `engine` are the threads and processes around it; `front` alone knows
the protocol. Importing this package imports no gRPC: `dnnserve --help` works without it.
"""
