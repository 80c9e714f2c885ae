"""Links from names in code marks to the reference: `ops.add` or `Handle.plan` in a Markdown page."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.util.nodes import make_refnode

__all__ = ["setup"]

_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(\(.*\))?")
_ORDINARY_WORD = re.compile(r"[a-z0-9]+")
"""`softmax` or `alpha` in a sentence is an argument as often as a function of ours."""


@cache
def _by_ending(domain: PythonDomain) -> dict[str, str]:
    """Full name of every documented object by each ending of it that only one has. Every page has been read by then."""
    endings: dict[str, set[str]] = {}
    for name, entry in domain.objects.items():
        if entry.aliased:  # the module that a package gathered it from
            continue
        parts = name.split(".")
        for start in range(len(parts)):
            endings.setdefault(".".join(parts[start:]), set()).add(name)
    return {ending: names.pop() for ending, names in endings.items() if len(names) == 1}


def _link(app: Sphinx, doctree: nodes.document, page: str) -> None:
    domain = app.env.domains.python_domain
    full_names = _by_ending(domain)
    for literal in list(doctree.findall(nodes.literal)):
        match = _NAME.fullmatch(literal.astext())
        if match is None or isinstance(literal.parent, nodes.reference):
            continue
        # A field has no entry of its own: its class has.
        owner = match[1].rpartition(".")[0]
        full = full_names.get(match[1]) or full_names.get(owner, "")
        target = domain.objects.get(full)
        if target is None or _ORDINARY_WORD.fullmatch(match[1]):
            continue
        reference = make_refnode(app.builder, page, target.docname, target.node_id, literal.deepcopy(), full)
        literal.parent.replace(literal, reference)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the moment when every page has been read."""
    app.connect("doctree-resolved", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
