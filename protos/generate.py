"""Generates the committed stubs from the .proto files: `make proto`, or `python protos/generate.py`.

Those beside this script are services and their messages; those in dnncore/importers are file formats, of messages alone.

With --check nothing is written here: the stubs are generated into a temporary folder and compared with the committed
ones; the differences are printed, and the exit status is 1 when there are any.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent
REPOSITORY = ROOT.parent
FORMATS = Path("dnncore/importers")
"""Formats' sources and stubs, relative to the repository."""

SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def sources() -> list[Path]:
    """Return every .proto file under ROOT, relative to it."""
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.proto"))


def formats() -> list[Path]:
    """Return every .proto file of a file format, relative to the repository."""
    return sorted(path.relative_to(REPOSITORY) for path in (REPOSITORY / FORMATS).rglob("*.proto"))


def stubs(folder: Path) -> dict[str, str]:
    """Return the text of every stub under folder, by its path relative to folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.name.endswith(SUFFIXES)
    }


def generate(folder: Path) -> None:
    """Write the stubs of every source under folder, which stands for ROOT, and those of every format under its FORMATS.

    Raises:
        RuntimeError: protoc refused a source; it has said on stderr which and why.
    """
    messages = [f"--python_out={folder}", f"--pyi_out={folder}"]
    _protoc(f"-I{ROOT}", *messages, f"--grpc_python_out={folder}", *(ROOT / source for source in sources()))
    _protoc(f"-I{REPOSITORY}", *messages, *(REPOSITORY / source for source in formats()))


def _protoc(include: str, *arguments: str | Path) -> None:
    status = protoc.main(["protoc", include, *map(str, arguments)])
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


def committed() -> dict[str, str]:
    """Return the stubs as they are, by their paths as `generate` lays them out."""
    return stubs(ROOT) | {(FORMATS / name).as_posix(): text for name, text in stubs(REPOSITORY / FORMATS).items()}


def differences(committed: dict[str, str], fresh: dict[str, str]) -> list[str]:
    """Return the unified diff that turns the committed stubs into the fresh ones, in lines; none if they are equal."""
    lines: list[str] = []
    for name in sorted(committed.keys() | fresh.keys()):
        before, after = committed.get(name), fresh.get(name)
        lines += difflib.unified_diff(
            (before or "").splitlines(),
            (after or "").splitlines(),
            "/dev/null" if before is None else f"committed/{name}",
            "/dev/null" if after is None else f"generated/{name}",
            lineterm="",
        )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Generate the gRPC stubs from the .proto files in protos/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the stubs are not current")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = stubs(Path(folder))
    if not options.check:
        for name, text in fresh.items():
            root = REPOSITORY if Path(name).is_relative_to(FORMATS) else ROOT
            (root / name).write_text(text, encoding="utf-8")
        return 0
    lines = differences(committed(), fresh)
    if lines:
        print("\n".join(lines))
        print(
            f"stubs are not what grpcio-tools {version('grpcio-tools')} makes of the sources: run `make proto`",
            file=sys.stderr,
        )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
