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
from dnnserve.config import ServerConfig
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError
from dnnserve.lifecycle.sightings import Sight
from dnnserve.lifecycle.versions import Stamp

__all__ = [
    "find_packages",
    "import_model_file",
    "load_package",
    "load_package_folder",
    "load_packages",
    "model_file",
    "see_repository",
    "stamp_of",
]

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
            raise StartError(_misnamed(folder))
        versions = {}
        for version in _folders(folder):
            if _VERSION.fullmatch(version.name) is None:
                raise StartError(_misnumbered(version))
            versions[ModelKey(folder.name, int(version.name))] = version
        if not versions:
            raise StartError(f"model folder {str(folder)!r} holds no version; put the package into {folder / '1'}")
        found.update(versions if all_versions else [max(versions.items())])
    if not found:
        raise StartError(f"model repository {str(root)!r} is empty; put a package into {root / 'NAME' / '1'}")
    return found


def see_repository(root: Path) -> Sight:
    """Look at a repository that changes: what is there, and what does not fit or cannot be read, which is left alone.

    Raises:
        StartError: it cannot be read at all.
    """
    seen: dict[str, Mapping[int, tuple[Path, Stamp]]] = {}
    misfits, hidden = [], set()
    try:
        folders = _folders(root)
    except OSError as error:
        raise StartError(f"model repository {str(root)!r} cannot be read: {error}") from error
    for folder in folders:
        if _NAME.fullmatch(folder.name) is None:
            misfits.append(_misnamed(folder))
            continue
        try:
            versions = _folders(folder)
            fitting = [version for version in versions if _VERSION.fullmatch(version.name)]
            found = {int(version.name): (version, stamp_of(version)) for version in fitting}
        except OSError as error:
            hidden.add(folder.name)
            misfits.append(f"model folder {str(folder)!r} cannot be read, and the model stays as it is: {error}")
            continue
        misfits += [_misnumbered(version) for version in versions if version not in fitting]
        if found:
            seen[folder.name] = found
    return Sight(seen, tuple(misfits), frozenset(hidden))


def stamp_of(package: Path) -> Stamp:
    """What the files of a package look like."""
    if package.is_file():
        status = package.stat()
        return ((package.name, status.st_mtime_ns, status.st_size, status.st_ino),)
    files = sorted(path for path in package.iterdir() if path.is_file() and not path.name.startswith("."))
    found = ((path.name, path.stat()) for path in files)
    return tuple((name, status.st_mtime_ns, status.st_size, status.st_ino) for name, status in found)


def load_packages(places: Mapping[ModelKey, Path], *, skip_bad: bool = False) -> Mapping[ModelKey, Package]:
    """Load packages.

    Args:
        places: Their folders.
        skip_bad: Log packages that cannot be loaded and leave them out.

    Raises:
        StartError: a package cannot be loaded, or none of them; the message names the path and the reason.
    """
    packages: dict[ModelKey, Package] = {}
    for key, path in places.items():
        try:
            packages[key] = load_package(path)
        except StartError as error:
            if not skip_bad:
                raise
            _log.error("left out: %s", error)
    if places and not packages:
        raise StartError(f"none of {len(places)} packages can be loaded; the log has the reason for each")
    return packages


def load_package_folder(path: Path) -> Mapping[ModelKey, Package]:
    """Load one package, to be served as version 1 under its own name.

    Raises:
        StartError: it cannot be loaded; the message names the path and the reason.
    """
    package = load_package(path)
    return {_first_version(package, f"model package {str(path)!r}", "use"): package}


def model_file(config: ServerConfig) -> ModelFile:
    """The file to import, where that is what a configuration names."""
    assert config.model is not None
    return ModelFile(config.model, config.weights, tuple(config.shape), config.name, config.labels, config.preprocess)


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


def _misnamed(folder: Path) -> str:
    return f"{str(folder)!r} is no model name; use letters, digits, '.', '_' and '-', 128 at most"


def _misnumbered(version: Path) -> str:
    return f"{str(version)!r} is no model version; name the folder by a positive integer"


def load_package(path: Path) -> Package:
    """Load a package.

    Raises:
        StartError: it cannot be loaded; the message names the path and the reason.
    """
    try:
        return Package.load(path)
    except (PackageError, OSError) as error:
        raise StartError(f"model package {str(path)!r} cannot be loaded: {error}") from error


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
