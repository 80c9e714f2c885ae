from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError
from dnnserve.repository import find_packages, load_package_folder, load_packages

from tests.server.packages import make_package, make_repository


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "models")


def test_the_latest_version_of_each_model_is_loaded(root: Path) -> None:
    packages = load_packages(find_packages(root))
    assert list(packages) == [ModelKey("digits", 2), ModelKey("faces", 7)]
    assert packages[ModelKey("faces", 7)].name == "faces"


def test_versions_are_ordered_as_numbers(root: Path) -> None:
    make_package().save(root / "digits" / "10")
    assert ModelKey("digits", 10) in find_packages(root)
    assert len(find_packages(root, all_versions=True)) == 4


def test_a_bare_package_is_version_1_under_its_own_name(root: Path) -> None:
    assert list(load_package_folder(root / "faces" / "7")) == [ModelKey("faces", 1)]


def test_files_and_hidden_folders_are_left_alone(root: Path) -> None:
    (root / "README").write_text("hello")
    (root / ".git").mkdir()
    (root / "digits" / ".staging").mkdir()
    assert len(load_packages(find_packages(root))) == 2


def flip_a_bit(package: Path) -> None:
    path = package / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 0x10
    path.write_bytes(data)


def truncate(package: Path) -> None:
    path = package / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def rename_layer(package: Path) -> None:
    path = package / "model.json"
    document = json.loads(path.read_text())
    document["graph"]["nodes"][0]["operator"] = "holography.1"
    path.write_text(json.dumps(document))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit flipped": (flip_a_bit, "SHA-256"),
    "truncated": (truncate, "truncated"),
    "unknown layer": (rename_layer, "'holography.1'"),
    "no weights": (lambda package: (package / "weights.safetensors").unlink(), "weights.safetensors"),
    "no model.json": (lambda package: (package / "model.json").unlink(), "model.json"),
    "no JSON": (lambda package: (package / "model.json").write_text("{"), "not JSON"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_package_is_refused_by_path_and_reason(
    root: Path, damage: Callable[[Path], object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(root / "faces" / "7")
    with pytest.raises(StartError, match=f"faces/7.*{reason}"):
        load_packages(find_packages(root))
    with pytest.raises(StartError, match=f"faces/7.*{reason}"):
        load_package_folder(root / "faces" / "7")
    assert list(load_packages(find_packages(root), skip_bad=True)) == [ModelKey("digits", 2)]
    assert reason.strip("'") in caplog.text


MISFITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "version by name": (lambda root: (root / "digits" / "latest").mkdir(), "digits/latest.*positive integer"),
    "version 0": (lambda root: (root / "digits" / "0").mkdir(), "digits/0.*positive integer"),
    "leading zero": (lambda root: (root / "digits" / "03").mkdir(), "digits/03.*positive integer"),
    "no version": (lambda root: (root / "empty").mkdir(), "empty.*holds no version"),
    "name": (lambda root: (root / "my model").mkdir(), "my model.*no model name"),
}


@pytest.mark.parametrize(("change", "message"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_into_a_repository_is_named(
    root: Path, change: Callable[[Path], object], message: str
) -> None:
    change(root)
    with pytest.raises(StartError, match=message):
        find_packages(root)


def test_a_repository_that_is_none_is_refused_with_the_remedy(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    for path, message in (
        (tmp_path / "nowhere", "not a folder"),
        (tmp_path / "bare", "is empty"),
        (root / "faces" / "7", "serve it with --model"),
    ):
        with pytest.raises(StartError, match=message):
            find_packages(path)


def test_a_repository_of_bad_packages_alone_is_refused_even_when_bad_ones_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "digits" / "1").mkdir(parents=True)
    with pytest.raises(StartError, match="none of 1 packages"):
        load_packages(find_packages(tmp_path), skip_bad=True)
