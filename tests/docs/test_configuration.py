"""The page of the configuration: its file and its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from dnnserve.command_line import parse_arguments
from dnnserve.config import ModelSection

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text()


def test_the_pages_file_is_read_printed_and_refused_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    Path("dnnserve.toml").write_text(text)
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    printing, starting = (shlex.split(line)[1:] for line in commands.splitlines())
    config = parse_arguments(starting)
    assert (config.precision, config.max_batch_rows) == ("fp16", 32)
    assert config.models == {"digits": ModelSection(max_batch_rows=8, default_deadline_ms=50, precision="fp32")}
    with pytest.raises(SystemExit):
        parse_arguments(printing)
    Path("dnnserve.toml").write_text(capsys.readouterr().out)
    assert parse_arguments(starting) == config
    Path("dnnserve.toml").write_text("max_bach = 1")
    with pytest.raises(SystemExit):
        parse_arguments(starting)
    (shown,) = re.findall(r"^    (dnnserve: error: .*)$", PAGE, re.MULTILINE)
    assert capsys.readouterr().err.splitlines()[-1] == shown
