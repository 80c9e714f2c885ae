"""What the emulated driver runs to make a module of PTX, as NVIDIA's compiles it: python -m emulator.jit --runtime LIB IN.ptx OUT.

The driver finds it as `jit` beside itself, a script that `emulator.build` writes. What was made before is kept, as a GPU's driver
keeps it.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from emulator.nvcc import CommandError, build_module, translator

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and translate; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m emulator.jit", description=__doc__)
    parser.add_argument("--runtime", type=Path, required=True, help="libcuda.so.1, which the module needs")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the modules that were made before")
    parser.add_argument("ptx", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args(arguments)
    text = options.ptx.read_bytes()
    try:
        kept = options.cache / hashlib.sha256(translator().encode() + b"\0" + text).hexdigest()
        if not kept.is_file():
            _make(text.decode(errors="replace"), kept, options.runtime)
        shutil.copyfile(kept, options.output)
    except (CommandError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _make(text: str, kept: Path, runtime: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".") as scratch:
        made = Path(scratch, "module.so")
        build_module(text, made, "PTX", runtime)
        made.replace(kept)


if __name__ == "__main__":
    sys.exit(main())
