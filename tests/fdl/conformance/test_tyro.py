"""tyro: names of members, and unions whose options belong to a subcommand."""

from __future__ import annotations

CONFIG = """
import enum
from dataclasses import dataclass, field
from typing import Optional
import tyro

class Act(enum.Enum):
    RELU = "relu"
    GELU = "gelu"

@dataclass
class Adam:
    lr: float = 1e-3

@dataclass
class SGD:
    lr: float = 0.1
    momentum: float = 0.0

@dataclass
class Config:
    act: Act = Act.RELU
    top: Optional[int] = 3
    opt: Adam | SGD = field(default_factory=Adam)
    steps: int = 10

print(tyro.cli(Config))
"""
USUAL = "Config(act=<Act.RELU: 'relu'>, top=3, opt=Adam(lr=0.001), steps=10)"


def test_a_member_is_chosen_by_its_name(driven):
    call = driven(
        CONFIG,
        """
        by_name: {options: {act: GELU}}
        by_value: {options: {act: gelu}}
        none: {options: {top: !null }}
        """,
    )
    assert call("by_name") == USUAL.replace("RELU: 'relu'", "GELU: 'gelu'")
    assert call("by_name", "--act", "RELU") == USUAL
    assert "invalid value `gelu` for `--act` -- allowed: RELU, GELU" in call("by_value")
    assert call("none") == USUAL.replace("top=3", "top=None")


def test_an_option_of_a_union_goes_behind_the_chosen_class(driven):
    call = driven(
        CONFIG,
        """
        sgd: {subcommand: "opt:sgd", options: {opt.momentum: 0.9, steps: 3}}
        adam: {options: {opt.lr: 0.5}}
        momentum: {options: {opt.momentum: 0.5}}
        wrong: {subcommand: "opt:adam", options: {opt.momentum: 0.9}}
        steps: {options: {steps: 4}}
        """,
    )
    changed = USUAL.replace("Adam(lr=0.001)", "SGD(lr=0.1, momentum=0.9)")
    assert call("sgd") == changed.replace("steps=10", "steps=3")
    assert call("steps", "opt:sgd", "--opt.momentum", "0.9") == changed.replace("=10", "=4")
    told = call("adam")
    assert "`opt.lr` is an option of the subcommands `opt:adam` and `opt:sgd`" in told
    assert "hint: subcommand: opt:adam" in told
    assert "`opt.momentum` is an option of the subcommand `opt:sgd`" in call("momentum")
    assert "the program has no option `opt.momentum`" in call("wrong")
