"""Every setting is compared with the type and the range that stand beside it."""

import math
import re
import typing
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from headrace.config import Config, ConfigError, override
from headrace.config.ranges import Range, check


@dataclass
class Inner:
    whole: Annotated[int, Range(1, 10)] = 1
    part: Annotated[float, Range(0, 1, below=True)] = 0.5
    number: float = 0.0


@dataclass
class Tree:
    inner: Inner
    perhaps: Annotated[float, Range(0, above=True)] | None = None
    maybe: Annotated[int | None, Range(1, 9)] = None
    switch: bool = True
    choice: Literal["a", "b"] | None = "a"
    text: str | None = "x"
    any_number: tuple[Annotated[int, Range(1, 9)], ...] = (1, 2, 3)
    two: tuple[int, float] | None = (1, 2.0)
    options: Annotated[dict[str, typing.Any], "JSON"] = field(default_factory=dict)


def tree(**changes):
    made = Tree(Inner())
    for name, value in changes.items():
        setattr(made.inner if hasattr(made.inner, name) else made, name, value)
    return made


def nested(depth):
    value = 1
    for _ in range(depth - 1):
        value = [value]
    return {"a": value}


GOOD = [
    ("whole", 10), ("part", 0), ("number", -1e300), ("number", 3), ("perhaps", 1e-9), ("perhaps", None), ("maybe", None),
    ("maybe", 9), ("switch", False), ("choice", "b"), ("choice", None), ("text", None), ("text", ""), ("any_number", ()),
    ("any_number", [9]), ("two", None), ("two", [1, 2]), ("options", {"a": [None]}), ("options", nested(100)),
]  # fmt: skip

BAD = [
    ("whole", 0, "inner.whole is 0; it must be at least 1"),
    ("whole", 11, "inner.whole is 11; it must be at most 10"),
    ("whole", 1.0, "inner.whole is 1.0; it must be a whole number"),
    ("whole", True, "inner.whole is True; it must be a whole number"),
    ("whole", "1", "inner.whole is '1'; it must be a whole number"),
    ("whole", None, "inner.whole is None; it must be a whole number"),
    ("part", 1, "inner.part is 1; it must be below 1"),
    ("part", math.nan, "inner.part is nan; it must be a finite number"),
    ("number", math.inf, "inner.number is inf; it must be a finite number"),
    ("number", 10**400, "it must be a finite number"),
    ("number", "high", "inner.number is 'high'; it must be a number"),
    ("number", False, "inner.number is False; it must be a number"),
    ("perhaps", 0.0, "perhaps is 0.0; it must be above 0"),
    ("perhaps", "None", "perhaps is 'None'; it must be a number"),
    ("maybe", 10, "maybe is 10; it must be at most 9"),
    ("switch", 1, "switch is 1; it must be true or false"),
    ("choice", "c", "choice is 'c'; it must be one of a, b"),
    ("choice", 3, "choice is 3; it must be one of a, b"),
    ("text", 3, "text is 3; it must be text"),
    ("any_number", 3, "any_number is 3; it must be a list"),
    ("any_number", (1, 0), "any_number is (1, 0); each must be at least 1"),
    ("any_number", (1, None), "any_number is (1, None); each must be a whole number"),
    ("two", (1,), "two is (1,); it must be a list of 2"),
    ("two", (1, "x"), "two is (1, 'x'); each must be a number"),
    ("options", [], "options is []; it must be a JSON object"),
    ("options", nested(101), "it must not be nested more than 100 times"),
    ("options", nested(900), "it must not be nested more than 100 times"),
    ("inner", {"whole": 1}, "it must be a group of settings"),
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_what_is_allowed(name, value):
    check(tree(**{name: value}))


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_what_is_refused(name, value, words):
    with pytest.raises(ConfigError) as refused:
        check(tree(**{name: value}))
    assert words in str(refused.value)
    assert len(str(refused.value)) < 200


def test_ranges_for_documentation():
    ranges = [Range(1, 32), Range(0, above=True), Range(0), Range(0, 1, below=True), Range(0, 5.0, above=True), Range(1, 2**53)]
    words = ["1 to 32", "above 0", "at least 0", "0 to below 1", "above 0, up to 5", "at least 1"]
    assert [allowed.describe() for allowed in ranges] == words


def numbers(hint, ranges=()):
    """Every number within a type, with the ranges around it."""
    if typing.get_origin(hint) is Annotated:
        inner, *metadata = typing.get_args(hint)
        yield from numbers(inner, [*ranges, *(entry for entry in metadata if isinstance(entry, Range))])
    elif hint in (int, float):
        yield hint, ranges
    else:
        for part in typing.get_args(hint):
            yield from numbers(part, ranges) if not isinstance(part, str) else ()


def settings(cls=Config, prefix=""):
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        if hasattr(hint, "__dataclass_fields__"):
            yield from settings(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, hint


def test_every_whole_number_has_both_ends():
    """Libraries in C take what fits into their integers, and crash or wrap around at the rest."""
    found = {name: ranges for name, hint in settings() for kind, ranges in numbers(hint) if kind is int}
    assert len(found) > 40
    assert {name for name, ranges in found.items() if not ranges or math.isinf(ranges[0].high - ranges[0].low)} == set()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("seed", -1, "seed is -1; it must be at least 0"),
        ("run.milestone_steps", 0, "run.milestone_steps is 0; it must be at least 1"),
        ("run.keep_checkpoints", 0, "run.keep_checkpoints is 0; it must be at least 1"),
        ("learning.learning_rate", -1.0, "learning.learning_rate is -1.0; it must be at least 0"),
        ("learning.gamma", 1.5, "learning.gamma is 1.5; it must be at most 1"),
        ("learning.adam_betas", (0.9, 1.0), "learning.adam_betas is (0.9, 1.0); each must be below 1"),
        ("learning.num_threads", 2**31, "learning.num_threads is 2147483648; it must be at most 4096"),
        ("learning.num_epochs", 10**9, "learning.num_epochs is 1000000000; it must be at most 1000"),
        ("learning.precision", "float16", "learning.precision is 'float16'; it must be one of auto, float32, bf16"),
        ("policy.mlp", (64, 0), "policy.mlp is (64, 0); each must be at least 1"),
        ("policy.normalize_returns", "yes", "policy.normalize_returns is 'yes'; it must be true or false"),
        ("envs.frame_stack", 10**6, "envs.frame_stack is 1000000; it must be at most 1024"),
        ("envs.resize", (84,), "envs.resize is (84,); it must be a list of 2"),
        ("envs.resize", (84, 10**6), "each must be at most 4096"),
        ("envs.kwargs", "render", "envs.kwargs is 'render'; it must be a JSON object"),
        ("envs.kwargs", {"map": {1, 2}}, "a resumed run get: Object of type set is not JSON serializable"),
        ("sampling.num_groups", 33, "it must be at most 32"),
        ("sampling.batch_timeout", -1.0, "sampling.batch_timeout is -1.0; it must be at least 0"),
        ("sampling.step_timeout", 0.0, "it must be above 0"),
        ("run.folder", 3, "run.folder is 3; it must be text"),
    ],
)
def test_settings_out_of_their_range(setting, value, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        override(Config(), **{setting: value})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("learning.totl_steps", "there is no setting learning.totl_steps; did you mean learning.total_steps?"),
        ("lr", "there is no setting lr; did you mean learning.learning_rate?"),
        ("run.nonsense", "there is no setting run.nonsense"),
    ],
)
def test_an_attribute_that_is_no_setting(name, words):
    config = Config()
    group, _, field_name = name.rpartition(".")
    setattr(getattr(config, group) if group else config, field_name, 1)
    with pytest.raises(ConfigError) as refused:
        check(config)
    assert str(refused.value) == words
