"""Models on disk: a repository `name/version/` of packages, one bare package folder, or a file of another framework.

A version is a folder named by a positive integer. A package folder is one that holds `model.json`; it is served as version 1 under
the name in it. Other files and folders whose name starts with a dot are left alone; anything else that does not fit is an error,
because a misspelt folder that is skipped in silence is a model that is missing in production.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from dnncore.errors import DnncoreError, PackageError
from dnncore.importers.loading import caffemodel_beside
from dnncore.importers.model_file import ModelFile
from dnncore.nn import Package
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError

__all__ = ["find_packages", "import_model_file", "load_package_folder", "load_repository"]

_log = logging.getLogger(__name__)
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MANIFEST = "model.json"


def find_packages(root: Path, *, all_versions: bool = False) -> Mapping[ModelKey, Path]:
    """List the package folders of a repository.

    Args:
        root: Holds `name/version/`.
        all_versions: Every version of each model; else the latest alone.

    Raises:
        StartError: no such folder, nothing in it, or something that does not fit; the message names the path.
    """
    if not root.is_dir():
        raise StartError(f"model repository {str(root)!r} is not a folder; give one that holds name/version/")
    if (root / _MANIFEST).exists():
        raise StartError(f"{str(root)!r} is a model package, not a repository of them; serve it with --model {root}")
    found: dict[ModelKey, Path] = {}
    for folder in _folders(root):
        if _NAME.fullmatch(folder.name) is None:
            raise StartError(f"{str(folder)!r} is no model name; use letters, digits, '.', '_' and '-', 128 at most")
        versions = {}
        for version in _folders(folder):
            if _VERSION.fullmatch(version.name) is None:
                raise StartError(f"{str(version)!r} is no model version; name the folder by a positive integer")
            versions[ModelKey(folder.name, int(version.name))] = version
        if not versions:
            raise StartError(f"model folder {str(folder)!r} holds no version; put the package into {folder / '1'}")
        found.update(versions if all_versions else [max(versions.items())])
    if not found:
        raise StartError(f"model repository {str(root)!r} is empty; put a package into {root / 'NAME' / '1'}")
    return found


def load_repository(root: Path, *, all_versions: bool = False, skip_bad: bool = False) -> Mapping[ModelKey, Package]:
    """Load the packages of a repository.

    Args:
        root: Holds `name/version/`.
        all_versions: Every version of each model; else the latest alone.
        skip_bad: Log packages that cannot be loaded and serve the others.

    Raises:
        StartError: a package cannot be loaded, or none is left; the message names the path and the reason.
    """
    packages: dict[ModelKey, Package] = {}
    for key, path in find_packages(root, all_versions=all_versions).items():
        try:
            packages[key] = _load(path)
        except StartError as error:
            if not skip_bad:
                raise
            _log.error("left out: %s", error)
    if not packages:
        raise StartError(f"no package in {str(root)!r} can be loaded; the log has the reason for each")
    return packages


def load_package_folder(path: Path) -> Mapping[ModelKey, Package]:
    """Load one package, to be served as version 1 under its own name.

    Raises:
        StartError: it cannot be loaded; the message names the path and the reason.
    """
    package = _load(path)
    return {_first_version(package, f"model package {str(path)!r}", "use"): package}


def import_model_file(file: ModelFile) -> Mapping[ModelKey, Package]:
    """Import a file of another framework, to be served as version 1.

    A net whose images are preprocessed is a classifier: without labels, its classes go by their numbers.

    Raises:
        StartError: it cannot be imported, or what it needs is missing; the message lists all that is in the way.
    """
    if file.path.suffix == ".prototxt" and not (file.weights or caffemodel_beside(file.path)):
        raise StartError(
            f"model {str(file.path)!r} has no weights: give --weights FILE.caffemodel, or put "
            f"{file.path.with_suffix('.caffemodel').name} beside it"
        )
    try:
        package = file.package("dnnserve", served=True)
    except (DnncoreError, OSError) as error:
        raise StartError(f"model {str(file.path)!r} cannot be imported: {error}") from error
    return {_first_version(package, f"model {str(file.path)!r}", "give it another with --name:"): package}


def _first_version(package: Package, what: str, remedy: str) -> ModelKey:
    if _NAME.fullmatch(package.name) is None:
        raise StartError(
            f"{what} names its model {package.name!r}; {remedy} letters, digits, '.', '_' and '-', 128 at most"
        )
    return ModelKey(package.name, 1)


def _load(path: Path) -> Package:
    try:
        return Package.load(path)
    except (PackageError, OSError) as error:
        raise StartError(f"model package {str(path)!r} cannot be loaded: {error}") from error


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
