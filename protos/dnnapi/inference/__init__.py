"""Package inference: GRPCInferenceService, the Open Inference Protocol with Triton's ModelConfig and ModelStatistics.

A process that has imported these stubs cannot import tritonclient.grpc, and the other way round: both define the
package "inference".
"""
