"""The dashboard loads, is what its script writes, and asks for nothing that a server does not have."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.promql import PROMETHEUS_LABELS, labels_in, metrics_in

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'dnncore[test]'")
models = pytest.importorskip(
    "grafana_foundation_sdk.models.dashboard",
    reason="grafana-foundation-sdk is not installed: pip install 'dnncore[test]'",
)

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dnnserve.json"


def charts() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for chart in charts() for target in chart["targets"]]


def recorded() -> set[str]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def test_the_dashboard_is_what_its_script_writes(tmp_path: Path) -> None:
    copy = shutil.copy(DEPLOY / "grafana" / "dashboard.py", tmp_path)
    subprocess.run([sys.executable, copy], check=True, timeout=60)
    assert (tmp_path / DASHBOARD.name).read_text() == DASHBOARD.read_text(), "run python deploy/grafana/dashboard.py"


def test_grafanas_own_types_load_the_dashboard() -> None:
    board = models.Dashboard.from_json(json.loads(DASHBOARD.read_text()))
    assert board.uid == board.title == "dnnserve"
    titles = [panel.title for panel in board.panels]
    assert len(set(titles)) == len(titles) > 10
    assert [variable.name for variable in board.templating.list_val] == ["source", "job", "model"]


def test_charts_do_not_lie_on_one_another() -> None:
    assert len({chart["id"] for chart in charts()}) == len(charts())
    for one, other in combinations([chart["gridPos"] for chart in charts()], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: str(chart["title"]))
def test_a_chart_reads_metrics_and_labels_that_a_server_has(
    chart: dict[str, Any], served: tuple[set[str], set[str]]
) -> None:
    assert chart["description"]
    for target in chart["targets"]:
        assert not metrics_in(target["expr"]) - served[0] - recorded(), target["expr"]
        assert not labels_in(target["expr"]) - served[1] - PROMETHEUS_LABELS, target["expr"]


def test_every_metric_of_the_server_is_on_the_dashboard(served: tuple[set[str], set[str]]) -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    behind = " ".join(rule["expr"] for group in rules for rule in group["rules"] if "record" in rule)
    shown = metrics_in(behind).union(*map(metrics_in, expressions()))
    families = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in shown}
    own = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in served[0]}
    missing = {name for name in own if name.startswith("dnnserve_")} - families
    assert not missing


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    rules = [
        {"record": f"chart:{number}", "expr": text.replace("$__rate_interval", "5m").replace("$", "")}
        for number, text in enumerate(expressions())
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_compose_mounts_files_that_exist_and_grafana_finds_the_dashboard() -> None:
    service = yaml.safe_load((DEPLOY / "compose.grafana.yaml").read_text())["services"]["grafana"]
    mounts = dict(volume.removesuffix(":ro").split(":") for volume in service["volumes"])
    for source in mounts:
        assert not source.startswith(".") or (DEPLOY / source).exists(), source
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "dnnserve.yaml").read_text())["providers"]
    assert Path(mounts["./grafana/dnnserve.json"]).parent == Path(provider["options"]["path"])
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    stack = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in stack
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
