from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dnncore.errors import ClosedError, ConfigError, PreprocessingError
from dnncore.preprocessing import SUFFIXES, CenterCrop, Color, Preprocessing, Resize
from dnncore.train.config import DataConfig
from dnncore.train.data import Loader, Prefetcher, Split, Subset, open_dataset, permutation
from tests.train.fixtures import CLASSES, make_folder

GRAY = Preprocessing.squash("gray", 8, 8, 1 / 255, (0.5,), (0.5,))


class Numbers:
    """Images whose every pixel is their index; class index % 3."""

    name = "numbers"
    class_names = ("zero", "one", "two")
    fingerprint = "numbers"

    def __init__(self, size: int) -> None:
        self.labels = (np.arange(size) % 3).astype(np.int32)

    def read(self, indices: np.ndarray) -> np.ndarray:
        return np.broadcast_to(indices.astype(np.uint8)[:, None, None, None], (len(indices), 8, 8, 1)).copy()


def indices(loader: Loader, epoch: int, position: int, number: int) -> list[list[int]]:
    """Which images the next batches hold."""
    batches = islice(loader.batches(epoch, position), number)
    return [np.rint((batch.images[:, 0, 0, 0] * 0.5 + 0.5) * 255).astype(int).tolist() for batch in batches]


def test_a_permutation_is_a_fixed_function_of_its_arguments() -> None:
    assert sorted(permutation(100, 1, 2).tolist()) == list(range(100))
    assert permutation(10, 0, 0).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    assert permutation(100, 0, 1).tolist() != permutation(100, 1, 0).tolist()


def test_the_digits_are_those_that_scikit_learn_carries() -> None:
    digits = open_dataset(DataConfig("digits"), GRAY)
    images = digits.read(np.arange(1797))
    assert (images.shape, str(images.dtype), images.min(), images.max()) == ((1797, 8, 8, 1), "uint8", 0, 255)
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits.class_names == tuple("0123456789")
    expected = hashlib.sha256(images.tobytes() + digits.labels.tobytes()).hexdigest()
    assert digits.fingerprint == expected


def test_the_digits_are_refused_for_a_net_of_another_input_size() -> None:
    with pytest.raises(ConfigError, match=r"\[1, 28, 28\].*the digits are \[1, 8, 8\].*preprocessing.height=8"):
        open_dataset(DataConfig("digits"), Preprocessing.squash("gray", 28, 28, 1.0, (0.0,), (1.0,)))


def test_a_split_cuts_every_class_in_the_same_proportion_and_shares_no_image() -> None:
    split = Split(Numbers(60), seed=7, holdout=0.25)
    training, held_out = split.training, split.held_out
    assert np.bincount(held_out.labels).tolist() == [5, 5, 5]
    seen = [part.read(np.arange(len(part.labels)))[:, 0, 0, 0].tolist() for part in (training, held_out)]
    assert sorted(seen[0] + seen[1]) == list(range(60))
    assert split.to_dict()["held_out"] == seen[1]


def test_a_split_depends_on_the_seed_alone() -> None:
    a, b, c = (Split(Numbers(60), seed, 0.25).to_dict()["held_out"] for seed in (7, 7, 8))
    assert a == b != c


@pytest.mark.parametrize(("holdout", "expected"), [(0.01, 1), (0.99, 3)])
def test_a_split_leaves_an_image_of_every_class_on_either_side(holdout: float, expected: int) -> None:
    assert np.bincount(Split(Numbers(12), 0, holdout).held_out.labels).tolist() == [expected] * 3


def test_a_class_of_one_image_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match="class 'two' has 1 images; 2 are needed"):
        Split(Numbers(5), 0, 0.5)


def test_an_epoch_holds_every_image_once_in_an_order_of_its_own() -> None:
    loader = Loader(Numbers(10), GRAY, 4, seed=3, drop_last=False)
    assert loader.batches_per_epoch == 3
    epochs = [indices(loader, epoch, 0, 3) for epoch in (0, 1)]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
    assert sorted(chain(*epochs[0])) == sorted(chain(*epochs[1])) == list(range(10))
    assert epochs[0] != epochs[1]


def test_batches_go_on_from_any_epoch_and_position() -> None:
    loader = Loader(Numbers(10), GRAY, 4, seed=3, drop_last=False)
    whole = indices(loader, 0, 0, 9)
    for done in range(6):
        assert indices(loader, *divmod(done, 3), 3) == whole[done : done + 3]


def test_a_dropped_last_batch_leaves_out_other_images_every_epoch() -> None:
    loader = Loader(Numbers(10), GRAY, 4, seed=3, drop_last=True)
    assert loader.batches_per_epoch == 2
    seen = [sorted(chain(*indices(loader, epoch, 0, 2))) for epoch in range(3)]
    assert all(len(set(epoch)) == 8 for epoch in seen)
    assert seen[0] != seen[1]
    mirroring = Loader(Numbers(10), GRAY, 4, seed=3, drop_last=True, mirror=True)
    assert [sorted(chain(*indices(mirroring, epoch, 0, 2))) for epoch in range(3)] == seen


def test_dropping_every_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.batch 11 .* leaves nothing of 10 images"):
        Loader(Numbers(10), GRAY, 11, seed=0, drop_last=True)


def test_batches_hold_preprocessed_images_and_their_labels() -> None:
    batch = next(Loader(Numbers(10), GRAY, 4, seed=3, drop_last=False).batches(0, 0))
    assert (batch.images.shape, str(batch.images.dtype), str(batch.labels.dtype)) == ((4, 1, 8, 8), "float32", "int32")
    index = np.rint((batch.images[:, 0, 0, 0] * 0.5 + 0.5) * 255)
    np.testing.assert_array_equal(index % 3, batch.labels)


def test_a_folder_has_its_classes_and_files_in_order(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "stripes", per_class=3)
    (root / "diagonal" / "notes.txt").write_text("not an image")
    (root / ".cache").mkdir()
    dataset = open_dataset(DataConfig("folder", str(root)), GRAY)
    assert dataset.class_names == CLASSES
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    expected = GRAY.decode((root / "horizontal" / "01.png").read_bytes())
    np.testing.assert_array_equal(dataset.read(np.array([4]))[0], expected)


def test_a_folder_may_hold_every_format_that_is_read_and_goes_through_a_pipeline(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "stripes", per_class=8)
    files = sorted((root / "diagonal").iterdir())
    for file, suffix in zip(files, SUFFIXES, strict=True):
        with Image.open(file) as image:
            image.convert("RGB").save(file.with_suffix(suffix))
        if suffix != ".png":
            file.unlink()
    preprocessing = Preprocessing((Color("rgb"), Resize(9, 9, "cover"), CenterCrop(7, 9)))
    dataset = open_dataset(DataConfig("folder", str(root)), preprocessing)
    assert list(dataset.labels).count(0) == len(SUFFIXES)
    assert dataset.read(np.arange(len(dataset.labels))).shape == (len(dataset.labels), 7, 9, 3)


def test_the_fingerprint_of_a_folder_changes_with_its_files_and_not_with_its_place(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "a")
    before = open_dataset(DataConfig("folder", str(root)), GRAY).fingerprint
    root = root.rename(tmp_path / "b")
    assert open_dataset(DataConfig("folder", str(root)), GRAY).fingerprint == before
    (root / "diagonal" / "00.png").unlink()
    assert open_dataset(DataConfig("folder", str(root)), GRAY).fingerprint != before


def test_folders_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        open_dataset(DataConfig("folder", str(tmp_path / "nowhere")), GRAY)
    (tmp_path / "cat").mkdir()
    with pytest.raises(ConfigError, match="holds 1 folders; 2 classes or more"):
        open_dataset(DataConfig("folder", str(tmp_path)), GRAY)
    (tmp_path / "dog").mkdir()
    with pytest.raises(ConfigError, match=r"cat holds no \.png"):
        open_dataset(DataConfig("folder", str(tmp_path)), GRAY)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n"])
def test_a_damaged_image_is_named(tmp_path: Path, content: bytes) -> None:
    root = make_folder(tmp_path / "stripes", per_class=3)
    (root / "vertical" / "02.png").write_bytes(content)
    dataset = open_dataset(DataConfig("folder", str(root)), GRAY)
    with pytest.raises(PreprocessingError, match=r"vertical/02\.png: .*repair or remove the file"):
        dataset.read(np.array([0, 8]))


def test_a_subset_numbers_its_images_from_0() -> None:
    subset = Subset(Numbers(9), np.array([5, 7]))
    assert subset.labels.tolist() == [2, 1]
    assert subset.read(np.array([1]))[0, 0, 0, 0] == 7


def test_a_prefetcher_gives_every_item_in_order_and_stays_within_its_depth() -> None:
    made: list[int] = []
    third_item_made = threading.Event()

    def numbers() -> Iterator[int]:
        for number in count():
            made.append(number)
            if number == 2:
                third_item_made.set()
            yield number

    with Prefetcher(numbers(), depth=2) as prefetcher:
        assert third_item_made.wait(60)  # two wait, the third is in the thread's hand
        assert made == [0, 1, 2]
        assert [prefetcher.take() for _ in range(50)] == list(range(50))
    assert len(made) <= 53


def test_an_error_of_the_iterator_comes_where_its_item_would_have_been() -> None:
    def two_then_error() -> Iterator[int]:
        yield 1
        yield 2
        raise PreprocessingError("third")

    with Prefetcher(two_then_error(), depth=5) as prefetcher:
        assert [prefetcher.take(), prefetcher.take()] == [1, 2]
        for _ in range(2):
            with pytest.raises(PreprocessingError, match="third"):
                prefetcher.take()


def test_leaving_a_prefetcher_ends_its_thread_and_refuses_to_go_on() -> None:
    before = threading.active_count()
    with Prefetcher(iter(range(100)), depth=1) as prefetcher:
        assert prefetcher.take() == 0
    assert threading.active_count() == before
    with pytest.raises(ClosedError):
        prefetcher.take()
