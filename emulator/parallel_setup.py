"""Run ./setup.py with $SETUP_JOBS files compiled at a time: setuptools by itself does only whole extensions side by side."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def _compile(
    self: Any,
    sources: list[str],
    output_dir: str | None = None,
    macros: list[Any] | None = None,
    include_dirs: list[str] | None = None,
    debug: bool = False,
    extra_preargs: list[str] | None = None,
    extra_postargs: list[str] | None = None,
    depends: list[str] | None = None,
) -> list[str]:
    """CCompiler.compile, but for the loop."""
    _, objects, postargs, preprocessor, build = self._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs
    )
    arguments = self._get_cc_args(preprocessor, debug, extra_preargs)

    def compile_one(target: str) -> None:
        source, extension = build[target]
        self._compile(target, source, extension, arguments, postargs, preprocessor)

    with ThreadPoolExecutor(int(os.environ["SETUP_JOBS"])) as pool:
        list(pool.map(compile_one, objects))
    return list(objects)


importlib.import_module("setuptools")  # brings distutils along, which Python itself has no more from 3.12 on
importlib.import_module("distutils.ccompiler").CCompiler.compile = _compile
sys.path.insert(0, str(Path.cwd()))
sys.argv[0] = "setup.py"
runpy.run_path("setup.py", run_name="__main__")
