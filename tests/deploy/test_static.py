"""What can be said about deploy/ without building it: files parse, names in them exist, and the image is meant to be safe.

`make deploy-check` builds and runs the real thing.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dnnserve.command_line import parse_arguments
from dnnserve.config import ServerConfig

from tests.deploy.promql import PROMETHEUS_LABELS, labels_in, metrics_in

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'dnncore[test]'")

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
CONTAINERFILES = (DEPLOY / "Containerfile", PROMETHEUS / "Containerfile")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def rules() -> list[dict[str, Any]]:
    return [rule for group in load(PROMETHEUS / "rules.yml")["groups"] for rule in group["rules"]]


def containerfile_instructions(path: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, arguments), continued lines joined, comments left out."""
    lines = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [
        (word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word
    ]


def test_a_misspelt_metric_in_a_rule_would_be_noticed() -> None:
    expression = 'sum by (job, le) (rate(dnnserve_typo_total{status=~"A|B"}[5m])) / model:x:rate5m and on (job) up == 0'
    assert metrics_in(expression) == {"dnnserve_typo_total", "model:x:rate5m", "up"}
    assert labels_in(expression) == {"job", "le", "status"}


def test_every_metric_in_the_rules_is_one_that_the_server_has(served: tuple[set[str], set[str]]) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        unknown = metrics_in(rule["expr"]) - served[0] - recorded - {"up"}
        assert not unknown, f"{rule.get('alert') or rule['record']} reads {unknown}, which no server has"


def test_every_label_in_the_rules_is_one_that_the_server_gives(served: tuple[set[str], set[str]]) -> None:
    for rule in rules():
        unknown = labels_in(rule["expr"]) - served[1] - PROMETHEUS_LABELS
        assert not unknown, f"{rule.get('alert') or rule['record']} reads {unknown}, which no metric has"


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["labels"]["severity"] in {"warning", "critical"}, alert["alert"]
        assert set(alert["annotations"]) == {"summary", "description"}, alert["alert"]


def test_every_alert_has_a_unit_test_in_which_it_fires() -> None:
    checks = [
        check for test in load(PROMETHEUS / "rules.test.yml")["tests"] for check in test.get("alert_rule_test", ())
    ]
    firing = {check["alertname"] for check in checks if check.get("exp_alerts")}
    silent = {check["alertname"] for check in checks if not check.get("exp_alerts")}
    assert firing == silent == {rule["alert"] for rule in rules() if "alert" in rule}


@pytest.mark.parametrize(
    "arguments", [("check", "config", "prometheus.yml"), ("test", "rules", "rules.test.yml")], ids=" ".join
)
def test_promtool_accepts_the_configuration_and_the_rules(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    run = subprocess.run(
        [promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_queue_alert_fires_before_requests_are_refused() -> None:
    (expression,) = (rule["expr"] for rule in rules() if rule.get("alert") == "DnnserveQueueFilling")
    share, _, limit = expression.partition(" > ")[2].partition(" * ")
    assert (float(share) < 1, limit) == (True, "dnnserve_queue_limit")


def compose_command() -> ServerConfig:
    """The configuration that the server has in the compose stack: the image's entry point and the stack's command."""
    entry = dict(containerfile_instructions(CONTAINERFILES[0]))["ENTRYPOINT"]
    program, *flags = json.loads(entry)
    assert program == "dnnserve"
    return parse_arguments([*flags, *load(DEPLOY / "compose.yaml")["services"]["dnnserve"]["command"]])


def test_the_command_line_of_the_image_is_one_that_the_server_takes() -> None:
    instructions = dict(containerfile_instructions(CONTAINERFILES[0]))
    config = parse_arguments([*json.loads(instructions["ENTRYPOINT"])[1:], *json.loads(instructions["CMD"])])
    assert config.host == "0.0.0.0"
    assert instructions["EXPOSE"].split() == [str(config.grpc_port), str(config.metrics_port)]


def test_compose_publishes_the_servers_ports_on_loopback_and_mounts_the_models_read_only() -> None:
    config = compose_command()
    service = load(DEPLOY / "compose.yaml")["services"]["dnnserve"]
    assert [port.rpartition(":")[2] for port in service["ports"]] == [str(config.grpc_port), str(config.metrics_port)]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert [volume.partition("}:")[2] for volume in service["volumes"]] == [f"{config.model_repository}:ro"]


def test_compose_waits_longer_for_the_server_than_its_drain_takes() -> None:
    service = load(DEPLOY / "compose.yaml")["services"]["dnnserve"]
    config = compose_command()
    assert float(service["stop_grace_period"].removesuffix("s")) >= config.lame_duck_seconds + config.drain_seconds + 10


@pytest.mark.parametrize("name", ["dnnserve", "prometheus"])
def test_compose_gives_services_no_rights(name: str) -> None:
    service = load(DEPLOY / "compose.yaml")["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_prometheus_scrapes_the_port_that_the_server_listens_on() -> None:
    (job,) = (job for job in load(PROMETHEUS / "prometheus.yml")["scrape_configs"] if job["job_name"] == "dnnserve")
    assert job["static_configs"][0]["targets"] == [f"dnnserve:{compose_command().metrics_port}"]


def test_the_health_check_asks_the_default_metrics_port() -> None:
    port = ServerConfig(model=Path("m")).metrics_port
    assert f'_DEFAULT_PORT = "{port}"' in (DEPLOY / "healthcheck.py").read_text()


@pytest.mark.parametrize(("arguments", "variable", "asked"), [((), "9", "9"), (("7",), "9", "7"), ((), "", "8002")])
def test_the_health_check_asks_the_port_that_the_environment_has_for_the_server(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], variable: str, asked: str
) -> None:
    check, urls = runpy.run_path(str(DEPLOY / "healthcheck.py")), list[str]()

    def refuse(_opener: object, url: str, **_: object) -> None:
        urls.append(url)
        raise OSError("that will do")

    monkeypatch.setattr("urllib.request.OpenerDirector.open", refuse)
    monkeypatch.setattr("sys.argv", ["healthcheck.py", *arguments])
    monkeypatch.setenv("DNNSERVE_METRICS_PORT", variable)
    assert check["main"]() == 1
    assert urls == [f"http://127.0.0.1:{asked}/readyz"]


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.parent.name)
def test_images_have_a_tagged_base_and_a_numeric_user_that_is_not_root(path: Path) -> None:
    instructions = containerfile_instructions(path)
    defaults = dict(rest.split("=", 1) for word, rest in instructions if word == "ARG" and "=" in rest)
    bases = [rest.split()[0] for word, rest in instructions if word == "FROM"]
    stages = {rest.split()[2] for word, rest in instructions if word == "FROM" and " AS " in rest}
    for base in bases:
        image = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base)
        assert image in stages or re.fullmatch(r"[\w./-]+:(?!latest$)[\w.-]+", image), base
    last_stage = [word for word, _ in instructions]
    final = instructions[len(last_stage) - 1 - last_stage[::-1].index("FROM") :]
    users = [rest for word, rest in final if word == "USER"]
    assert users
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_the_final_stage_installs_no_compiler() -> None:
    final = CONTAINERFILES[0].read_text().rpartition("\nFROM ")[2]
    (packages,) = re.findall(r"apt-get install [^&]*--no-install-recommends ([^&\\]*)", final)
    assert set(packages.split()) == {"python3", "libstdc++6"}


def test_the_context_that_docker_reads_is_the_one_of_podman() -> None:
    assert (DEPLOY / "Containerfile.dockerignore").resolve() == DEPLOY.parent / ".containerignore"
