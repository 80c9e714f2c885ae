"""Structures and constants of cuda.h that the checks pass to the driver."""

from __future__ import annotations

import ctypes

SUCCESS = 0
INVALID_VALUE = 1
NOT_FOUND = 500

LAUNCH_CLUSTER_DIMENSION = 4
LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6

FUNCTION_MAX_DYNAMIC_SHARED = 8
FUNCTION_NON_PORTABLE_CLUSTER = 14

MEMORY_HOST, MEMORY_DEVICE = 1, 2


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: a number and a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("params", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class MemsetNode(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = (
        ("destination", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_size", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class MemsetOfType(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS_v2: with its context."""

    _fields_ = (*MemsetNode._fields_, ("context", ctypes.c_void_p))


class UpdateResult(ctypes.Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = (("result", ctypes.c_int), ("error_node", ctypes.c_void_p), ("error_from_node", ctypes.c_void_p))


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("src_x", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_type", ctypes.c_int),
        ("src_host", ctypes.c_void_p),
        ("src_device", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("dst_x", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_type", ctypes.c_int),
        ("dst_host", ctypes.c_void_p),
        ("dst_device", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = (
        ("src_x", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_z", ctypes.c_size_t),
        ("src_lod", ctypes.c_size_t),
        ("src_type", ctypes.c_int),
        ("src_host", ctypes.c_void_p),
        ("src_device", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("reserved0", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("src_height", ctypes.c_size_t),
        ("dst_x", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_z", ctypes.c_size_t),
        ("dst_lod", ctypes.c_size_t),
        ("dst_type", ctypes.c_int),
        ("dst_host", ctypes.c_void_p),
        ("dst_device", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("reserved1", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("dst_height", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    )


class CopyOfType(ctypes.Structure):
    """CUDA_MEMCPY_NODE_PARAMS."""

    _fields_ = (("flags", ctypes.c_int), ("reserved", ctypes.c_int), ("context", ctypes.c_void_p), ("copy", Copy3D))


class HostOfType(ctypes.Structure):
    """CUDA_HOST_NODE_PARAMS."""

    _fields_ = (("function", ctypes.c_void_p), ("argument", ctypes.c_void_p))


class _AnyNode(ctypes.Union):
    _fields_ = (
        ("padding", ctypes.c_longlong * 29),
        ("kernel", KernelNode),
        ("memcpy", CopyOfType),
        ("memset", MemsetOfType),
        ("host", HostOfType),
    )


class NodeOfType(ctypes.Structure):
    """CUgraphNodeParams."""

    _anonymous_ = ("any",)
    _fields_ = (
        ("type", ctypes.c_int),
        ("reserved0", ctypes.c_int * 3),
        ("any", _AnyNode),
        ("reserved1", ctypes.c_longlong),
    )


NODE_KERNEL, NODE_MEMCPY, NODE_MEMSET, NODE_HOST, NODE_EMPTY = 0, 1, 2, 3, 5  # CUgraphNodeType


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps: pinned memory of one device."""

    _fields_ = (
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("security", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
