"""What happens between the loader's thread and the control's: each step is a race that is made to happen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from dnnserve.envelope import ModelKey
from dnnserve.errors import UnavailableError
from dnnserve.lifecycle.control import ModelControl
from dnnserve.lifecycle.requests import LoadWanted
from dnnserve.lifecycle.sightings import Sight
from dnnserve.lifecycle.stage import Stage
from dnnserve.lifecycle.versions import Recipe
from dnnserve.metrics import Metrics
from dnnserve.questions import Answer
from dnnserve.scheduler import Scheduler
from dnnserve.statistics import Statistics

from tests.server.fakes import wait_until
from tests.server.packages import make_package
from tests.server.serving import make_config

OLD, NEW = ModelKey("digits", 1, 1), ModelKey("digits", 1, 2)
RECIPE = Recipe(Path("digits/1"), (), 8, "fp32", frozenset({"cpu"}))


class Nothing:
    """Stands for a runner, a store and a front end that do at once what they are told."""

    label = "cpu"

    def load(self, _model: ModelKey, rows: int, end: Callable[[int], None]) -> None:
        end(rows)

    def unload(self, _model: ModelKey, end: Callable[[], None]) -> None:
        end()

    def put(self, *_arguments: object) -> None:
        pass

    drop = forget = put


def test_a_version_that_is_loaded_again_while_it_goes_is_counted() -> None:
    going: list[threading.Thread] = []

    class Interrupted(Statistics):
        def add(self, model: ModelKey) -> None:
            super().add(model)
            if model == NEW:
                going.append(threading.Thread(target=stage.free, args=(OLD, lambda: None)))
                going[0].start()
                going[0].join(0.1)

    nothing, statistics, metrics = Nothing(), Interrupted([]), Metrics([])
    rest = nothing, lambda _path: make_package(), [nothing], Scheduler(), statistics, metrics, nothing
    stage = Stage(make_config(), *rest)  # type: ignore[arg-type]
    stage.load(OLD, RECIPE)
    stage.load(NEW, RECIPE)
    going[0].join()
    assert statistics.snapshots().keys() == {ModelKey("digits", 1)}
    metrics.record_calls(OLD, "ModelInfer", "OK", [1])  # told late, and counted with the version's
    metrics.record_calls(NEW, "ModelInfer", "OK", [1])
    labels = {"model": "digits", "version": "1", "method": "ModelInfer", "status": "OK"}
    assert metrics.registry.get_sample_value("dnnserve_requests_total", labels) == 2
    stage.free(NEW, lambda: None)
    metrics.record_calls(NEW, "ModelInfer", "OK", [1])
    assert metrics.registry.get_sample_value("dnnserve_requests_total", labels) is None


def test_who_asks_while_the_control_stops_is_told_so() -> None:
    stage = Stage(make_config(), *([Nothing()] * 2), [], Scheduler(), Statistics([]), Metrics([]), Nothing())  # type: ignore[arg-type, call-arg]
    config = make_config(model=None, model_repository=Path("unused"), repository_mode="explicit")
    control = ModelControl(config, {}, stage, lambda: Sight({}))
    answers: list[Answer] = []
    control._events.put(None)
    control.ask(LoadWanted("digits"), answers.append)
    control.start({})
    wait_until(lambda: bool(answers))
    control.ask(LoadWanted("digits"), answers.append)
    assert [type(answer) for answer in answers] == [UnavailableError] * 2
