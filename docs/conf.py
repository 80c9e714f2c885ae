"""How Sphinx builds this site: `make docs`. Warnings are errors."""

import gc
import sys
from pathlib import Path

# The extensions, and the problems that the tables of algorithms are made with, are of this checkout.
sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(Path(__file__).parents[1])]

from dnncore.version import __version__  # noqa: E402 (found by the line above)

gc.set_threshold(200_000, 20, 100)
project = "dnncore"
release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstrings",
    "names",
    "algorithm_tables",
    "measurements",
]
exclude_patterns = ["_ext"]
html_theme = "furo"
html_title = f"dnncore {release}"
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 3

default_role = "code"  # what stands in single backticks in a docstring; `names` makes links of it
autodoc_default_options = {
    "members": True,
    "special-members": "__dlpack__, __dlpack_device__, __cuda_array_interface__, __cuda_stream__",
}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Source", "notes")]
python_maximum_signature_line_length = 100
add_module_names = False
