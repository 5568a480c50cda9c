"""Configurations: layers, types, what is refused and how it is said."""

from __future__ import annotations

import json
from typing import Any, Literal

import attrs
import pytest

from flowrl.errors import ConfigError
from flowrl.runs.config import Configuration, build_config, load_config_file, parse_value


@attrs.define(kw_only=True)
class Config(Configuration):
    learn_rate: float = 1e-3
    hidden: tuple[int, ...] = (64, 64)
    window: tuple[int, float] = (1, 2.0)
    clip: float | None = None
    either: int | float = 1
    widths: list[float] = attrs.field(factory=list)
    bounds: dict[str, float] = attrs.field(factory=dict)
    mode: Literal["fast", "slow"] = "fast"
    double: bool = True
    anything: Any = None


@attrs.define(kw_only=True)
class Checked(Configuration):
    gamma: float = attrs.field(default=0.9)
    low: int = 0
    high: int = 1

    @gamma.validator
    def _between(self, attribute: Any, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError("a discount is between 0 and 1")

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}")


@attrs.define(kw_only=True)
class Demanding(Configuration):
    goal: float


def test_later_layers_override_and_the_rest_stays_default():
    config = build_config(Config, {"seed": 1, "learn_rate": 0.1}, {"seed": 2}, {})
    assert (config.seed, config.learn_rate, config.hidden, config.env) == (2, 0.1, (64, 64), "CartPole-v1")


def test_keys_and_attributes_are_the_same():
    config = build_config(Config, {"seed": 5})
    assert config["seed"] == config.seed == config.to_dict()["seed"] == 5
    with pytest.raises(ConfigError, match="'sed'; did you mean 'seed'"):
        config["sed"]


CONVERTED = [
    ("learn_rate", 1, 1.0),
    ("hidden", [32, 16], (32, 16)),
    ("hidden", (), ()),
    ("window", [3, 4], (3, 4.0)),
    ("clip", 3, 3.0),
    ("clip", None, None),
    ("either", 3, 3),
    ("either", 3.5, 3.5),
    ("widths", [1, 2.5], [1.0, 2.5]),
    ("bounds", {"low": 1}, {"low": 1.0}),
    ("mode", "slow", "slow"),
    ("double", False, False),
    ("anything", [True], [True]),
    ("env_args", {"a": [1]}, {"a": [1]}),
    ("eval_every", 7, 7),
]


@pytest.mark.parametrize(("key", "value", "expected"), CONVERTED)
def test_values_get_the_type_of_their_key(key, value, expected):
    found = build_config(Config, {key: value})[key]
    assert found == expected
    assert type(found) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert [type(v) for v in found] == [type(v) for v in expected]


REFUSED = [
    ("learn_rate", "fast", "learn_rate='fast': expected float, got str"),
    ("learn_rate", True, "expected float, got bool"),
    ("seed", True, "expected int, got bool"),
    ("seed", 1.0, "expected int, got float"),
    ("seed", None, "expected int, got NoneType"),
    ("double", 1, "expected bool, got int"),
    ("hidden", [64, "64"], r"hidden=.*expected tuple\[int, ...\], got (list|tuple)"),
    ("hidden", [64, True], "a bool is no number"),
    ("hidden", 64, r"expected tuple\[int, ...\], got int"),
    ("window", [1, 2.0, 3], "expected tuple"),
    ("widths", (1.0,), r"expected list\[float\], got tuple"),
    ("clip", "none", r"expected float \| None, got str"),
    ("mode", "quick", r"expected Literal\['fast', 'slow'\], got str"),
    ("env_args", [1], r"expected dict\[str, Any\], got list"),
    ("env", 3, """expected str, got int; for text write env='"3"'"""),
    ("seed", -1, "seed=-1: .*>= 0"),
    ("num_workers", -1, "num_workers=-1: .*>= 0"),
    ("envs_per_worker", 0, "envs_per_worker=0: .*>= 1"),
    ("eval_every", -1, "eval_every=-1: .*>= 0"),
    ("eval_episodes", 0, "eval_episodes=0: .*>= 1"),
    ("eval_train_ratio", -0.5, r"eval_train_ratio=-0\.5: .*>= 0"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED)
def test_ill_typed_values_name_key_value_and_type(key, value, message):
    with pytest.raises(ConfigError, match=message):
        build_config(Config, {key: value})


def test_an_unknown_key_is_refused_with_the_closest_name():
    with pytest.raises(ConfigError, match="unknown configuration key 'lern_rate'; did you mean 'learn_rate'"):
        build_config(Config, {"lern_rate": 0.1})


def test_validators_of_the_plan_name_their_key():
    with pytest.raises(ConfigError, match=r"gamma=2\.0: a discount is between 0 and 1"):
        build_config(Checked, {"gamma": 2})
    with pytest.raises(ConfigError, match="the configuration is refused: low=3 is above high=1"):
        build_config(Checked, {"low": 3})


def test_a_key_without_default_must_be_given():
    with pytest.raises(ConfigError, match="no value for goal"):
        build_config(Demanding)
    assert build_config(Demanding, {"goal": 3}).goal == 3.0


PARSED = [
    ("1", 1),
    ("1.5", 1.5),
    ("1e-4", 1e-4),
    ("5e4", 50_000),
    ("1_000", 1000),
    ("true", True),
    ("True", True),
    ("null", None),
    ("None", None),
    ("[64, 64]", [64, 64]),
    ("(64, 64)", (64, 64)),
    ("{'a': 1}", {"a": 1}),
    ('{"a": true}', {"a": True}),
    ('"1"', "1"),
    ("'x'", "x"),
    ("CartPole-v1", "CartPole-v1"),
    ("module:factory", "module:factory"),
    ("a=b", "a=b"),
    ("", ""),
    ("__import__('os')", "__import__('os')"),
    ("[" * 10_000, "[" * 10_000),
]


@pytest.mark.parametrize(("text", "value"), PARSED, ids=[text[:20] for text, _ in PARSED])
def test_values_are_read_as_they_are_written(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_files_are_read_by_suffix(tmp_path):
    (tmp_path / "a.json").write_text('{"seed": 3, "hidden": [8]}')
    (tmp_path / "a.toml").write_text("seed = 3\nhidden = [8]\nenv_args = {a = 1}")
    (tmp_path / "a.yaml").write_text("seed: 3\nhidden:\n  - 8\nlearn_rate: 1e-4  # a number, as in JSON\nclip: null\n")
    (tmp_path / "a.yml").write_text("")
    assert load_config_file(tmp_path / "a.json") == {"seed": 3, "hidden": [8]}
    assert build_config(Config, load_config_file(tmp_path / "a.toml")).env_args == {"a": 1}
    assert load_config_file(tmp_path / "a.yaml") == {"seed": 3, "hidden": [8], "learn_rate": 1e-4, "clip": None}
    assert load_config_file(tmp_path / "a.yml") == {}


def test_a_configuration_survives_json():
    config = build_config(Config, {"hidden": [8], "clip": 1, "window": [1, 2], "env_args": {"a": [1]}})
    assert build_config(Config, json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "malformed"),
        ("a.json", "[" * 10**5, "nested too deeply"),
        ("a.toml", "seed 3", "malformed"),
        ("a.json", "[1]", "expected a table of keys, got a list"),
        ("a.ini", "seed: 3", r"expected a \.json, \.toml or \.yaml file"),
        ("a.yaml", "seed: [", "malformed"),
        ("a.yaml", "[" * 10**4, "nested too deeply"),
        ("a.yaml", "env_args: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a.yaml", "hidden: &one [1]\nwidths: *one", r"refers to an anchor, \*one"),
        ("a.yaml", "- 1", "expected a table of keys, got a list"),
        ("a.yaml", "1: 2", "expected texts for keys, got 1"),
        ("a.json", None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_config_file(tmp_path / name)
