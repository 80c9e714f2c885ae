from __future__ import annotations

from tests.importers.onnx.table import PAGE, page


def test_the_table_in_the_docs_is_current() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.importers.onnx.table"
