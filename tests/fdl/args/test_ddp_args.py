"""The flags of a program whose ranks share the work."""

import re

import pytest

from fdl import DdpArgs, FdlArgsError, option
from fdl.manifest.models import Ddp
from fdl.plan.generate import FIELDS
from tests.rows import each_row


class Args(DdpArgs):
    """Train a classifier."""

    epochs: int = option(default=10, help="Passes over the data")
    timeline: bool = option(help="A flag of the same name as one of the base")


def parsed(words):
    return Args.try_parse_from(words.split()).ddp_settings()


def test_every_key_of_the_section_has_its_flag():
    flags = {flag for section, _, flag in FIELDS if section == "ddp"}
    assert {f"--{name}" for name in DdpArgs.schema()["options"]} == flags
    assert DdpArgs.model_fields.keys() == Ddp.model_fields.keys()


def test_nothing_given_says_nothing():
    assert parsed("") == {}
    assert parsed("--epochs 3") == {}


def test_a_run_records_what_was_given_and_nothing_of_the_rest():
    def recorded(words):
        return Args.try_parse_from(words.split()).resolved()

    assert recorded("") == {"epochs": {"value": 10, "origin": "default"}}
    given = recorded("--policy async --lr-scale-ratio 0 --max-batch-diff 0 --timeline")
    assert {name: one["value"] for name, one in given.items()} == {
        "epochs": 10,
        "policy": "async",
        "lr_scale_ratio": 0.0,
        "max_batch_diff": 0,
        "timeline": True,
    }


def test_what_the_program_sets_itself_is_recorded():
    assert Args(policy="sync").resolved()["policy"] == {"value": "sync", "origin": "program"}


def test_what_is_given_has_the_form_it_has_in_a_manifest():
    words = (
        "--policy async --backend cpu --anchor 7 --ranks auto --progressive false "
        "--speed-hint 1:2.5 --partition-ratios 0.7,0.3 --simulate-ms 40,100 --max-batch-diff 0 "
        "--lr-scale-ratio 0 --max-restarts 0 --no-divergence-guard --timeline --nodes 1:2"
    )
    assert parsed(words) == {
        "policy": "async",
        "backend": "cpu",
        "anchor": 7,
        "ranks": "auto",
        "progressive": False,
        "speed_hint": {"slow_rank": 1, "ratio": 2.5},
        "partition_ratios": [0.7, 0.3],
        "simulate_ms": [40.0, 100.0],
        "max_batch_diff": 0,
        "lr_scale_ratio": 0.0,
        "max_restarts": 0,
        "no_divergence_guard": True,
        "timeline": True,
        "nodes": "1:2",
    }
    assert parsed("--anchor auto --progressive auto --ranks 2 --mode solo-0") == {
        "mode": "solo-0",
        "anchor": "auto",
        "progressive": "auto",
        "ranks": 2,
    }


@each_row(
    ("words", "said"),
    [
        ("--mode fast", "invalid value `fast` for `--mode` -- allowed: solo-N, auto, sync"),
        ("--anchor 0", "invalid value `0` for `--anchor` -- expected auto or a whole number"),
        ("--ranks 1:2", "invalid value `1:2` for `--ranks` -- expected auto or a whole number"),
        ("--nodes 2:1", "invalid value `2:1` for `--nodes` -- expected a whole number from 1"),
        ("--rdzv gpu1", "invalid value `gpu1` for `--rdzv` -- expected a host and a port"),
        ("--speed-hint 1", "invalid value `1` for `--speed-hint` -- expected RANK:RATIO"),
        ("--speed-hint=-1:2", "invalid value `-1:2` for `--speed-hint`"),
        ("--speed-hint 1:inf", "invalid value `1:inf` for `--speed-hint`"),
        ("--policy casual", "invalid value `casual` for `--policy`"),
        ("--mode sync --policy async", "`--mode` and `--policy` say the same"),
        ("--mode sync --backend cpu", "`--mode` and `--backend` say the same"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(words, said):
    with pytest.raises(FdlArgsError, match=re.escape(said)):
        parsed(words)


def test_the_program_s_own_arguments_come_first():
    names = list(Args.schema()["options"])
    assert set(names[:2]) == {"epochs", "timeline"}
    assert "Train a classifier." in Args.render_help()


def test_the_options_of_the_base_are_one_line_until_they_are_asked_for():
    page = Args.render_help()
    assert "  --help distributed  26 options for several GPUs or machines\n" in page
    # The program's own option of the same name belongs to the program.
    assert "--timeline" in page
    assert "--policy" not in page
    group = Args.render_help(group="distributed")
    assert "  --policy TEXT" in group
    assert "[possible: sync, cadence, async, auto]" in " ".join(group.split())
    assert "--epochs" not in group
    assert group.split("\n\n")[1] in Args.render_help(group="all")
    with pytest.raises(FdlArgsError, match="groups: distributed, all"):
        Args.render_help(group="nope")


def test_the_defaults_in_the_help_are_those_of_the_framework():
    config = pytest.importorskip("flodl.ranks.settings").DdpRunConfig()
    pattern = re.compile(r"\[default: ([\w.]+)\]")
    said = {
        name: found.group(1)
        for name, one in DdpArgs.schema()["options"].items()
        if (found := pattern.search(one["description"]))
    }
    # `auto` and `adapts` stand for None.
    assert said.pop("progressive") == "auto"
    assert config.progressive_dispatch is None
    assert said.pop("max-overshoot") == "adapts"
    assert config.max_overshoot is None
    assert said.pop("checkpoint-every") == "1"  # of every training
    assert said.keys() >= {"policy", "backend", "anchor", "max-anchor", "max-restarts"}
    for name, text in said.items():
        value = getattr(config, name.replace("-", "_"))
        assert text == (value if isinstance(value, str) else f"{value:g}"), name


def test_the_framework_understands_what_is_handed_to_it():
    settings_of = pytest.importorskip("flodl.ranks.settings").settings_of
    found = settings_of(
        parsed(
            "--mode cpu-async --anchor 7 --ranks 2 --progressive true --speed-hint 1:2.5 "
            "--partition-ratios 0.7,0.3 --no-divergence-guard --max-overshoot 4"
        )
    )
    assert found == {
        "policy": "async",
        "backend": "cpu",
        "anchor": 7,
        "ranks": 2,
        "progressive_dispatch": True,
        "speed_hint": (1, 2.5),
        "partition_ratios": (0.7, 0.3),
        "divergence_guard": False,
        "max_overshoot": 4,
    }
    assert settings_of(parsed("--anchor auto --ranks auto --mode solo-0")) == {}
