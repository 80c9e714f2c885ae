"""The page of the client: its programs and its commands run, against a server that answers by rules."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from dnnclient.cli import main

from tests.client.fake_server import FakeServer, image

PAGE = (Path(__file__).parents[2] / "docs/client.md").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for path, index in (("seven.png", 7), ("photos/a.png", 1), ("photos/b.png", 2)):
        Path(path).write_bytes(image(index))


def test_the_pages_programs_run(folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(compile(program.replace("127.0.0.1:8001", server.target), "client.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["label 7", "['label 1', 'label 2']"]


def test_the_pages_load_is_measured_and_reported_as_it_shows(folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"```sh\ndnnclient (.*?)\n```", PAGE)
    with FakeServer() as server:
        main([*shlex.split(command), "--server", server.target, "--warmup", "0.1", "--duration", "0.3"])
    shown = [line.split()[0] for line in re.search(r"\n((?:    .*\n)+)\n\*Rate\*", PAGE)[1].splitlines()[1:-1]]  # type: ignore[index]
    said = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert said[2 : 2 + len(shown)] == shown
