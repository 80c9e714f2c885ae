"""Dropout's generator is Philox4x32-10 as published, and what it drops depends on nothing but the state."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import DType, Handle, ops
from dnncore.errors import BadParamError
from tests.ops.oracle.dropout import philox

_ALL = 0xFFFFFFFF
# counter, key, words: the known answers that Random123, the authors' library, tests itself with.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((_ALL,) * 4, (_ALL,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def _mask(
    handle: Handle, shape: tuple[int, ...], seed: int, offset: int, dtype: str = "float32", layout: str = "NCHW"
) -> np.ndarray:
    """Where elements are kept, with a probability of one half."""
    ones = np.ones(shape, DType.of(dtype).numpy)
    with handle.upload(ones, layout) as x, handle.upload(ops.dropout_state(seed, offset)) as state:
        ops.dropout_forward(handle, 0.5, 1.0, x, state, 0.0, x)
        kept: np.ndarray = x.numpy().astype(np.float64) != 0
        return kept


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_oracle_is_philox(counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]) -> None:
    assert philox(counter, key) == words


def test_elements_are_kept_by_the_words_of_seed_offset_and_place(handle: Handle) -> None:
    seed, offset = 0xA4093822_299F31D0, 0x1_0000_0007
    key = (seed & _ALL, seed >> 32)
    words = [word for i in range(5) for word in philox((i, 0, offset & _ALL, offset >> 32), key)]
    assert np.array_equal(_mask(handle, (19,), seed, offset), np.array(words[:19]) >= 2**31)


def test_dtype_and_layout_do_not_matter(handle: Handle) -> None:
    expected = _mask(handle, (2, 5, 3, 7), 7, 3)
    for dtype in ("float16", "bfloat16", "float64"):
        assert np.array_equal(_mask(handle, (2, 5, 3, 7), 7, 3, dtype), expected)
    for layout in ("NHWC", "CHWN"):
        assert np.array_equal(_mask(handle, (2, 5, 3, 7), 7, 3, layout=layout), expected)


def test_seeds_and_offsets_give_masks_of_their_own_with_the_right_rate(handle: Handle) -> None:
    masks = [_mask(handle, (4096,), seed, offset) for seed, offset in ((1, 0), (2, 0), (1, 1), (1, 2**32))]
    for i, mask in enumerate(masks):
        assert abs(mask.mean() - 0.5) < 5 * 0.5 / 64  # five standard deviations
        for other in masks[:i]:
            assert abs((mask == other).mean() - 0.5) < 5 * 0.5 / 64


def test_backward_drops_what_forward_dropped(handle: Handle) -> None:
    x = np.arange(1, 38, dtype=np.float32)
    with handle.upload(x) as tx, handle.upload(x) as tdy, handle.upload(ops.dropout_state(11)) as state:
        ops.dropout_forward(handle, 0.3, 1.0, tx, state, 0.0, tx)
        ops.dropout_backward(handle, 0.3, 1.0, tdy, state, 0.0, tdy)
        assert np.array_equal(tx.numpy(), tdy.numpy())


def test_a_recorded_program_drops_other_elements_once_the_state_has_moved_on(handle: Handle) -> None:
    with (
        handle.upload(np.ones(64, np.float32)) as x,
        handle.tensor((64,)) as y,
        handle.upload(ops.dropout_state(3)) as state,
    ):
        with handle.record() as program:
            ops.dropout_forward(handle, 0.5, 1.0, x, state, 0.0, y)
        program.run()
        first = y.numpy()
        program.run()
        assert np.array_equal(y.numpy(), first)
        state.assign(ops.dropout_state(3, 1))
        program.run()
        assert not np.array_equal(y.numpy(), first)


def test_a_dropped_nan_is_gone(handle: Handle) -> None:
    x = np.full(64, np.nan, np.float32)
    with handle.upload(x) as tx, handle.upload(ops.dropout_state(5)) as state:
        ops.dropout_forward(handle, 0.5, 1.0, tx, state, 0.0, tx)
        found = tx.numpy()
    assert np.isnan(found).any()
    assert (found[~np.isnan(found)] == 0).all()


@pytest.mark.parametrize("probability", [-0.1, 1.5, float("nan")])
def test_bad_probabilities_are_refused(handle: Handle, probability: float) -> None:
    with (
        handle.tensor((3,)) as x,
        handle.upload(ops.dropout_state(5)) as state,
        pytest.raises(BadParamError, match="from 0 to 1"),
    ):
        ops.dropout_forward(handle, probability, 1.0, x, state, 0.0, x)


@pytest.mark.parametrize(("seed", "offset"), [(-1, 0), (0, 2**64)])
def test_bad_states_are_refused(seed: int, offset: int) -> None:
    with pytest.raises(BadParamError, match="2\\^64"):
        ops.dropout_state(seed, offset)
