from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncore.errors import ConfigError
from dnncore.preprocessing import CenterCrop, Color, Preprocessing, Resize, SubtractMean
from dnncore.train.config import Config, OptimizerConfig, OutputConfig, differences, load_config, parse_config


def test_an_empty_file_gives_every_default() -> None:
    assert parse_config("") == Config()


def test_values_of_the_file_and_overrides_are_taken_the_later_over_the_earlier() -> None:
    config = parse_config(
        "seed = 3\n[optimizer]\nlr = 1\n[schedule]\nmilestones = [2, 3.5]",
        ["optimizer.lr=0.25", "optimizer.nesterov=true", "optimizer.lr=0.5", "output.run=runs/a b", "name=7"],
    )
    assert (config.seed, config.optimizer.lr, config.optimizer.nesterov) == (3, 0.5, True)
    assert config.schedule.milestones == (2.0, 3.5)
    assert (config.output.run, config.name) == ("runs/a b", "7")


def test_a_float_written_as_an_integer_becomes_a_float() -> None:
    assert type(parse_config("[optimizer]\nlr = 1").optimizer.lr) is float


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (
            "[optimizer]\nlearning_rate = 1",
            (),
            "unknown key optimizer.learning_rate; legal in [optimizer]: lr, momentum",
        ),
        ("epochs = 1", (), "unknown key epochs; legal at the top: name, seed, device, net"),
        ("[training]\nepochs = '3'", (), "training.epochs is '3'; it must be an integer"),
        ("[training]\nepochs = 3.0", (), "training.epochs is 3.0; it must be an integer"),
        ("[training]\nepochs = true", (), "training.epochs is True; it must be an integer"),
        ("[optimizer]\nlr = true", (), "optimizer.lr is True; it must be a finite number"),
        ("[optimizer]\nlr = nan", (), "optimizer.lr is nan; it must be a finite number"),
        ("[optimizer]\nlr = inf", (), "optimizer.lr is inf; it must be a finite number"),
        ("[optimizer]\nnesterov = 1", (), "optimizer.nesterov is 1; it must be true or false"),
        ("optimizer = 1", (), "optimizer is 1; it must be a table with the keys lr, momentum"),
        ("seed = [1]", (), "seed is [1]; it must be an integer"),
        ("name = 1", (), "name is 1; it must be a string"),
        ("[preprocessing]\nmean = 0.5", (), "preprocessing.mean is 0.5; it must be an array of numbers"),
        ("[preprocessing]\nmean = [0.5, 'x']", (), "preprocessing.mean[1] is 'x'; it must be a finite number"),
        ("[preprocessing]\nmean = [0.5, 0.5]", (), "[preprocessing] mean (0.5, 0.5)"),
        (
            "[preprocessing]\ncolor = 'red'",
            (),
            'preprocessing.color is \'red\'; it must be one of "gray", "rgb", "bgr"',
        ),
        ("[preprocessing]\nsteps = 3", (), "preprocessing.steps is 3; it must be an array of tables"),
        ("[preprocessing]\nsteps = ['crop']", (), "preprocessing.steps[0] is 'crop'; it must be a table"),
        (
            "[preprocessing]\nsteps = [{step = 'crop'}]",
            (),
            "[preprocessing] {'step': 'crop'} is no step; a table",
        ),
        ("[[preprocessing.steps]]\nstep = 'color'", (), "[preprocessing] the steps color do not end in one size"),
        (
            "[preprocessing]\nheight = 9\nsteps = [{step = 'color'}]",
            (),
            "preprocessing.steps takes the place of preprocessing.height; give one of them",
        ),
        ("[schedule]\nkind = 'zigzag'", (), "schedule.kind is 'zigzag'; it must be one of"),
        ("[schedule]\nkind = 'multistep'", (), "schedule.milestones is []; it must be given"),
        ("[schedule]\nmilestones = [3, 2]", (), "schedule.milestones is [3.0, 2.0]; it must be ascending"),
        ("[net]\nname = 'resnet'", (), "net.name is 'resnet'; it must be one of alexnet, "),
        ("[data]\nkind = 'folder'", (), "data.path is ''; it must be a folder when data.kind is folder"),
        ("[data]\nholdout = 1.0", (), "data.holdout is 1.0; it must be greater than 0 and less than 1"),
        ("[training]\nbatch = 0", (), "training.batch is 0; it must be 1 or more"),
        ("[optimizer]\nmomentum = 1", (), "optimizer.momentum is 1.0; it must be 0 or more and less than 1"),
        ("[optimizer]\nmomentum = 0\nnesterov = true", (), "optimizer.nesterov is true; it must be false"),
        ("name = '../x'", (), "name is '../x'; it must be made of"),
        ("name = '..'", (), "name is '..'; it must be made of"),
        ("seed = -1", (), "seed is -1; it must be 0 or more"),
        ("seed = ", (), "not valid TOML"),
        ("", ("seed",), "override 'seed' has no '='"),
        ("", ("sead=1",), "unknown key sead; legal at the top"),
        ("", ("optimizer.rate=1",), "unknown key optimizer.rate; legal in [optimizer]"),
        ("", ("seed.x=1",), "unknown key seed.x; seed is a value, not a table"),
        ("", ("seed=abc",), "override of seed: 'abc' is not a TOML value; expected an integer"),
        ("", ("optimizer=1",), "optimizer is 1; it must be a table"),
        ("optimizer = 1", ("optimizer.lr=1",), "optimizer is 1; it must be a table"),
        ("", ("data.kind=mnist",), "data.kind is 'mnist'; it must be one of"),
        ("seed = 'a'\nsead = 1", (), "seed is 'a'; it must be an integer; unknown key sead; legal at the top"),
    ],
)
def test_bad_input_is_refused_with_the_key_and_what_is_legal(
    text: str, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(text, overrides)
    assert message in str(error.value)


def test_errors_of_a_file_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    with pytest.raises(ConfigError, match=r"a\.toml: cannot be read"):
        load_config(path)
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match=r"a\.toml: cannot be read"):
        load_config(path)
    path.write_text("sede = 1")
    with pytest.raises(ConfigError, match=r"a\.toml: unknown key sede"):
        load_config(path)


@given(
    run=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    lr=st.floats(min_value=1e-300, max_value=1e300),
    nesterov=st.booleans(),
)
def test_the_resolved_configuration_reads_back_equal(run: str, lr: float, nesterov: bool) -> None:
    config = Config(optimizer=OptimizerConfig(lr=lr, nesterov=nesterov), output=OutputConfig(run=run))
    assert parse_config(config.to_toml()) == config


PIPELINE = """
[[preprocessing.steps]]
step = "color"
order = "bgr"
[[preprocessing.steps]]
step = "resize"
height = 256
width = 256
antialias = false
[[preprocessing.steps]]
step = "center_crop"
height = 227
width = 227
fill = [1, 2, 3]
[[preprocessing.steps]]
step = "subtract_mean"
means = [104, 116.5, 123]
"""


def test_preprocessing_may_be_a_pipeline_of_steps() -> None:
    config = parse_config(PIPELINE)
    assert config.preprocessing.build() == Preprocessing(
        (
            Color("bgr"),
            Resize(256, 256, antialias=False),
            CenterCrop(227, 227, (1, 2, 3)),
            SubtractMean((104.0, 116.5, 123.0)),
        )
    )
    assert parse_config(config.to_toml()) == config
    assert parse_config("", [f"preprocessing.steps={_inline(config)}"]) == config
    changed = parse_config(PIPELINE.replace("227", "224"))
    assert [line.partition(":")[0] for line in differences(config.identity(), changed.identity())] == [
        "preprocessing.steps"
    ]


def _inline(config: Config) -> str:
    return next(line for line in config.to_toml().splitlines() if line.startswith("steps = ")).removeprefix("steps = ")


def test_identity_leaves_out_what_does_not_decide_the_weights_and_nothing_else() -> None:
    config = parse_config("")
    free = parse_config("", ["output.run=x", "checkpoint.keep=9", "training.stop_after=4", "device=cpu", "name=other"])
    assert free.identity() == config.identity()
    changed = parse_config("", ["optimizer.lr=0.5", "training.batch=8"])
    assert differences(config.identity(), changed.identity()) == [
        "optimizer.lr: 0.05, now 0.5",
        "training.batch: 32, now 8",
    ]


def test_the_configuration_of_the_demo_is_legal() -> None:
    config = load_config(Path(__file__).parents[2] / "examples" / "digits.toml")
    assert config.data.kind == "digits"
    assert dataclasses.replace(config, name="digits") == config
