"""Nothing here is collected where devices are not real ones."""

import pytest
import torch

from tests.conftest import GPU

collect_ignore_glob = [] if GPU else ["*"]


@pytest.fixture(autouse=True)
def _device_0_is_current() -> None:
    """JAX leaves the last GPU current in the thread that starts it, for the other libraries too."""
    torch.cuda.set_device(0)
