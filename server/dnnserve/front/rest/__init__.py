"""HTTP/REST of the Open Inference Protocol: requests become messages of the gRPC service, and its answers become JSON."""
