"""Special registers (PTX ISA 10) as C++ expressions over EmuThread `T`."""

from __future__ import annotations

__all__ = ["PREDICATES", "SPECIAL_REGISTERS"]

_VECTORS = {
    "tid": "tid", "ntid": "ntid", "ctaid": "ctaid", "nctaid": "nctaid", "clusterid": "clusterid",
    "nclusterid": "nclusterid", "cluster_ctaid": "cluster_ctaid", "cluster_nctaid": "cluster_nctaid",
}  # fmt: skip

SPECIAL_REGISTERS: dict[str, str] = {
    **{f"%{name}.{axis}": f"T->{field}.{axis}" for name, field in _VECTORS.items() for axis in "xyz"},
    "%laneid": "T->lane",
    "%warpid": "T->warp",
    "%nwarpid": "64u",  # of a multiprocessor of sm_90
    "WARP_SZ": "32u",
    "%smid": "T->smid",
    "%nsmid": "132u",
    "%gridid": "T->gridid",
    "%cluster_ctarank": "T->cluster_ctarank",
    "%cluster_nctarank": "T->cluster_nctarank",
    "%lanemask_eq": "(1u << T->lane)",
    "%lanemask_lt": "((1u << T->lane) - 1)",
    "%lanemask_le": "((2u << T->lane) - 1)",
    "%lanemask_ge": "~((1u << T->lane) - 1)",
    "%lanemask_gt": "~((2u << T->lane) - 1)",
    "%clock": "u32(emu_clock())",
    "%clock_hi": "u32(emu_clock() >> 32)",
    "%clock64": "emu_clock()",
    "%globaltimer": "emu_globaltimer()",
    "%globaltimer_lo": "u32(emu_globaltimer())",
    "%globaltimer_hi": "u32(emu_globaltimer() >> 32)",
    "%dynamic_smem_size": "T->dynamic_bytes",
    "%total_smem_size": "total_shared_bytes(T, kSharedBytes)",
    "%aggr_smem_size": "(total_shared_bytes(T, kSharedBytes) + kEmuSharedReserved)",
    "%reserved_smem_offset_begin": "0u",
    "%reserved_smem_offset_end": "kEmuSharedReserved",
    "%reserved_smem_offset_cap": "kEmuSharedReserved",
    **{f"%envreg{i}": "0u" for i in range(32)},
    **{f"%pm{i}": "0u" for i in range(8)},
}

PREDICATES = {"%is_explicit_cluster": "(T->cluster_nctarank > 1)"}
