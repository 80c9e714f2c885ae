"""The inference server: dnncore's model packages over gRPC, batched dynamically, on every device of the machine.

Policy (`batcher`) is a pure state machine; `scheduler` and `runner` are the threads around it; `servicer` and `converters` are
the only modules that know the protocol. Importing this package imports no gRPC: `dnnserve --help` works without it.
"""
