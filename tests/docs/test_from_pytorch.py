"""The page on PyTorch's models: its blocks run as they stand there, and its table has every operator."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from dnncore.torch.export import rules

PAGE = (Path(__file__).parents[2] / "docs/from_pytorch.md").read_text()


def test_every_block_gives_what_the_page_says() -> None:
    blocks = re.findall(r"^```pycon\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "from_pytorch", "docs/from_pytorch.md", 0)
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert results.failed == 0
    assert results.attempted > 15


def test_the_table_has_every_operator() -> None:
    families = dict(re.findall(r"^\| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)[1:])
    names = {
        family: sorted(
            {str(operator).removeprefix("aten.").partition(".")[0] for operator in getattr(rules, family).RULES}
        )
        for family in families
    }
    assert families == {family: ", ".join(f"`{name}`" for name in listed) for family, listed in names.items()}
    assert sum(len(getattr(rules, family).RULES) for family in families) == len(rules.RULES)
