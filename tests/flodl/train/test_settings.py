"""Settings as data: the methods of the builder are those of the fields."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flodl.ranks.settings import DdpRunConfig
from flodl.setting import Settings, Whole, how, setting, texts, with_methods
from flodl.train.builder import TrainerBuilder
from flodl.train.settings.methods import PARTS
from flodl.train.settings.records import LivePage
from scripts import settings
from tests.flodl.train.programs import training
from tests.rows import each_row

PLAIN = [(part, one) for part in PARTS for one in fields(part) if one.name in part.__annotations__]


def test_what_is_made_from_the_settings_is_up_to_date() -> None:
    for name, text in settings.made().items():
        assert Path(settings.ROOT, name).read_text(encoding="utf-8") == text, (
            f"{name} is out of date: python scripts/settings.py"
        )


def test_every_field_has_a_text_and_every_text_reaches_its_method() -> None:
    for part, one in PLAIN:
        text = texts(part)[one.name]
        assert text, one.name
        if how(one).has_method:
            method = getattr(TrainerBuilder, how(one).method or one.name)
            assert text.partition(".")[0] in str(method.__doc__)


def test_methods_have_signatures_and_texts_of_their_fields() -> None:
    found = inspect.signature(TrainerBuilder.anchor)
    assert str(found) == "(self, batches: 'int') -> 'Self'"
    assert inspect.getdoc(TrainerBuilder.anchor) == (
        "Batches of the slowest rank between two averages, at first (default: 10)."
    )
    assert list(inspect.signature(TrainerBuilder.guards).parameters)[:3] == ["self", "on", "spike"]
    said = str(inspect.getdoc(TrainerBuilder.guards))
    assert "    attempts: How often it goes back for one place" in said


def test_a_value_is_checked_at_the_call_and_in_the_plan() -> None:
    with pytest.raises(ValueError, match="anchor=0: it must be an integer of at least 1"):
        training().anchor(0)
    plan = training().anchor(3).seed(7)._plan()
    assert (plan.distributed.anchor, plan.seed) == (3, 7)
    with pytest.raises(ValueError, match="accumulate=0: it must be an integer of at least 1"):
        replace(plan, accumulate=0)
    with pytest.raises(FrozenInstanceError):
        plan.seed = 3  # type: ignore[misc]


@each_row(
    ("call", "told"),
    [
        (lambda: training().anchor(), r"anchor\(\): missing a required argument: 'batches'"),
        (lambda: training().anchor(1, 2), r"anchor\(\): too many positional arguments"),
        (lambda: training().guards(often=3), r"guards\(\): got an unexpected keyword argument"),
    ],
)
def test_a_call_with_other_arguments_is_a_type_error(call: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        call()


def test_none_leaves_a_setting_as_if_it_was_not_called() -> None:
    plan = training().max_grad_norm(None).checkpoint_steps(None).ema(None).speeds(None)._plan()
    assert (plan.max_grad_norm, plan.checkpoint_steps, plan.ema) == (None, None, None)
    assert plan.distributed == DdpRunConfig()


def test_a_later_call_wins_and_keywords_are_names_of_arguments() -> None:
    built = (
        training().trace().trace(on=False).speed_hint(rank=1, ratio=0.5).live(port=0, buttons=True)
    )
    plan = built.autocast(dtype=torch.bfloat16)._plan()
    assert (plan.trace, plan.distributed.speed_hint) == (False, (1, 2.0))
    assert plan.live == LivePage(0, buttons=True)
    assert training().ddp({"max_grad_norm": 1.0}).max_grad_norm(2.0)._plan().max_grad_norm == 2.0


def test_a_mistyped_key_of_ranks_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"'polcy' is not a setting of ranks; did you mean policy\?"
    ):
        training().ddp({"polcy": "sync"})


@each_row(
    ("section", "told"),
    [
        ({"speed_hint": "1"}, "speed_hint='1': it is .rank, ratio. with a ratio above 0, or text"),
        ({"speed_hint": {"slow_rank": 1}}, "or text such as 1:2.5"),
        ({"speed_hint": 3}, "speed_hint=3: it is"),
        ({"speed_hint": (0, float("nan"))}, "it is"),
        ({"partition_ratios": "a,b"}, "partition_ratios='a,b': it must be numbers above 0"),
        ({"partition_ratios": 3}, "partition_ratios=3: it must be numbers above 0"),
        ({"lr_scale_ratio": -2.0}, "lr_scale_ratio=-2.0: it must be at least 0"),
        ({"lr_scale_ratio": float("nan")}, "lr_scale_ratio=nan: it must be at least 0"),
        ({"simulate_sync_ms": float("nan")}, "simulate_sync_ms=nan: it must be at least 0"),
        ({"progressive": "perhaps"}, "use auto, true or false"),
    ],
)
def test_a_wrong_value_of_ranks_is_told_with_its_name(section: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        training().ddp(section)


def test_a_path_in_place_of_a_run_directory_is_told_at_its_line() -> None:
    with pytest.raises(ValueError, match=r"run_dir='runs': .*RunDirectory.create\('runs'\)"):
        training().run_dir("runs")


@dataclass(frozen=True, kw_only=True)
class Added(Settings):
    """Settings that somebody adds."""

    patience: int = setting(3, Whole(0), takes="epochs", key="patience", auto=True)
    """Epochs to wait. Longer waits cost time."""


def test_a_new_setting_is_one_field() -> None:
    @with_methods(Added)
    class Builder:
        def _set(self, name: str, value: object) -> Any:
            return {name: value}

    made: Any = Builder()
    assert made.patience(epochs=5) == {"patience": 5}
    assert made.patience.__doc__ == "Epochs to wait (default: 3). Longer waits cost time."
    with pytest.raises(ValueError, match="patience=-1: it must be an integer of at least 0"):
        made.patience(-1)
    with pytest.raises(ValueError, match="patience=True: it must be an integer"):
        Added(patience=True)


def test_without_a_source_there_are_methods_and_no_texts() -> None:
    part = dataclass(frozen=True)(
        type("Gone", (Settings,), {"__annotations__": {"n": int}, "n": setting(1, takes="n")})
    )
    part.__module__ = "sys"
    assert texts(part) == {}
    assert with_methods(part)(type("Builder", (), {})).n.__doc__ == ""


def test_a_new_key_stands_behind_those_that_are_there() -> None:
    old = 'class Ddp(Section):\n    old: int | None = None\n    """Old."""\n'
    model = f"{old}\n    def check(self): ...\n"
    [(name, key)] = settings.keys_of(Added)
    assert settings.renewed(model, "Ddp", {name: key.in_model(name)}) == (
        f"{old}    patience: AutoOrCount | None = None\n"
        '    """Epochs to wait (default: 3, or `auto`). Longer waits cost time."""\n'
        "\n    def check(self): ...\n"
    )
    assert key.in_arguments(name) == (
        "    patience: str | None = "
        "_option(completer=\"echo auto\", help='Epochs to wait; or auto [default: 3]')\n"
    )
