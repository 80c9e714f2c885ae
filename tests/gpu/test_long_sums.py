"""Long sums of one sign in the accumulators of real tensor cores, which round towards zero."""

from __future__ import annotations

import pytest
import torch

from dnncore import DType, Handle, Preference, TensorDescriptor
from dnncore.cuda.convolution.wgmma_tile import LONGEST_SUM
from dnncore.plan import rank
from dnncore.problems import MatmulProblem
from dnncore.testing import tolerance

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("length", [2**14, 2**16, 2**18, 2**22])
def test_sums_of_one_sign_are_within_the_tolerance(length: int, dtype: DType) -> None:
    """a [64, length] times b [length, 64]; alpha makes of the sum an average, which float16 can hold."""
    torch.manual_seed(1)
    a, b = (torch.rand(64, length, device="cuda").add_(0.5).to(getattr(torch, dtype.value)) for _ in range(2))
    expected = (a.double() @ b.double().T) / length
    c = torch.empty(64, 64, dtype=a.dtype, device="cuda")
    of_a, of_c = (TensorDescriptor(dtype, tuple(t.shape), t.stride()) for t in (a, c))
    problem = MatmulProblem(of_a, TensorDescriptor(dtype, tuple(b.T.shape), b.T.stride()), of_c)
    tried = []
    with Handle("cuda:0", stream=0) as handle:
        for algorithm in rank(problem, handle.device, Preference.PREFER_FASTEST):
            if algorithm.status is None:
                c.fill_(float("nan"))
                plan = handle.plan(problem, algorithm=algorithm.name)
                handle.launch(plan, 1.0 / length, [a.data_ptr(), b.data_ptr()], 0.0, [c.data_ptr()])
                tried.append(algorithm.name)
                error = float(((c.double() - expected) / expected).abs().max())
                assert error <= tolerance(dtype, length), f"{algorithm.name}: {error}"
    by_wgmma = ["gemm_wgmma"] if length <= LONGEST_SUM else []
    assert tried == [*by_wgmma, "gemm_split_k", "gemm", "direct"]
