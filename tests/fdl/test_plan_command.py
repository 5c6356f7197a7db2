"""`fdl plan`: what would be started where, and with which settings."""

import json
import platform

import pytest

from tests.fdl.hardware.fake_nvml import card, nvidia
from tests.fdl.programs import executable

FILES = {
    "fdl.yml": "commands: {train: , test: {run: echo hi}}",
    "train/fdl.yml": """
        entry: python main.py
        ddp: {policy: cadence, speed_hint: {slow_rank: 1, ratio: 2.5}}
        training: {epochs: 5, batches_per_epoch: 40}
        commands:
          two: {ddp: {ranks: 2, mode: cpu-async}, training: {epochs: 2}}
          wide: {ddp: {ranks: 2, nodes: "1:2", rdzv: "gpu1:29400"}}
    """,
    "train/main.py": "raise SystemExit('nobody starts me')\n",
}
SHOWS_ARGUMENTS = '#!/bin/sh\nshift 2\necho "$@"\nexit 3\n'


@pytest.fixture
def python(project, tmp_path):
    """A project whose Python prints what it is given behind `-m MODULE`, and exits with 3."""
    project({**FILES, ".venv/pyvenv.cfg": "home = /usr\n"})
    return executable(tmp_path / ".venv/bin/python", SHOWS_ARGUMENTS)


def rows(text):
    """Label -> its lines."""
    found = {}
    label = ""
    for line in text.splitlines():
        label = line[:9].strip() or label
        found.setdefault(label, []).append(line[10:])
    return found


def test_each_rank_is_shown_with_its_device_and_each_setting_with_its_place(project, fdl, tmp_path):
    project(FILES)
    gpus = nvidia(tmp_path / "gpus", [card("12.0", "Fast", bus=1), card("6.1", "Slow", bus=2)])
    done = fdl("plan", "train", "two", "--ranks", "3", "--lr", "0.1", env=gpus)
    assert (done.exit, done.err) == (0, "")
    shown = rows(done.out)
    assert shown["command"] == ["fdl train two"]
    assert shown["start"] == ["3 ranks on this machine, through torchrun, with up to 3 restarts"]
    host = platform.node()
    assert shown["rank"] == [f"0  {host}  Fast", f"1  {host}  Slow", f"2  {host}  no GPU left"]
    assert "there are 3 ranks and 2 GPUs: each rank needs one of its own" in shown["note"]
    settings = {line.partition(":")[0]: line.split("  ") for line in shown["settings"]}
    assert settings["ddp.ranks"][0] == "ddp.ranks: 3"
    assert settings["ddp.ranks"][-1].strip() == "command line"
    assert settings["ddp.mode"][-1].strip() == "train/fdl.yml:5:31 (preset two)"
    assert settings["ddp.speed_hint.slow_rank"][-1].strip().startswith("train/fdl.yml:2:")
    assert settings["ddp.speed_hint.ratio"][-1].strip().startswith("train/fdl.yml:2:")
    assert "ddp.policy" not in settings
    assert any(line.startswith("FLODL_DDP=") for line in shown["env"])


def test_a_typed_mode_is_shown_in_the_place_of_what_it_replaces(project, fdl):
    project(FILES)
    shown = rows(fdl("plan", "train", "--mode", "nccl-sync").out)["settings"]
    assert [one.split("  ")[0] for one in shown if "policy" in one or "mode" in one] == [
        "ddp.mode: nccl-sync"
    ]


def test_several_machines_are_told_apart(project, fdl):
    project(FILES)
    shown = rows(fdl("plan", "train", "wide").out)
    assert shown["start"][0].startswith(
        "2 ranks on each of 1 to 2 machines, which meet at gpu1:294"
    )
    assert shown["rank"][-1].strip() == "the other machines: what the same command says there"


def test_one_process_is_a_plan_as_well(project, fdl):
    project(FILES)
    shown = rows(
        fdl("plan", "train", "--epochs", "9", "--", "-x", env={"CUDA_VISIBLE_DEVICES": ""}).out
    )
    assert shown["start"] == ["one process"]
    assert len(shown["rank"]) == 1
    # Without a simulation, this is the program's own flag.
    assert shown["argv"][0].endswith("--epochs 9 -x")


def test_as_one_json_document(project, fdl):
    project(FILES)
    done = fdl("plan", "train", "two", "--json")
    plan = json.loads(done.out)
    assert plan["schema_version"] == 1
    assert (plan["command"], plan["preset"]) == (["train", "two"], "two")
    assert plan["start"] == {
        "by": "torchrun",
        "ranks_here": 2,
        "nodes": {"least": 1, "most": 1},
        "rdzv": "",
        "max_restarts": 3,
    }
    assert [one["local_rank"] for one in plan["ranks"]] == [0, 1]
    assert json.loads(plan["env"]["FLODL_DDP"]["value"])["mode"] == "cpu-async"
    ranks = next(one for one in plan["settings"] if one["name"] == "ddp.ranks")
    assert ranks == {"name": "ddp.ranks", "value": 2, "origin": "train/fdl.yml:5:22 (preset two)"}
    assert json.loads(fdl("--json", "plan", "train", "two").out) == plan


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "no command is given"),
        (("test",), 2, "`fdl test` is a shell command: it starts once"),
        (("nope",), 1, "unknown command: nope"),
        (("--on", "here", "--json", "train"), 2, "--on has no JSON to print"),
        (("train", "--sync-ms", "5"), 2, "--sync-ms needs --simulate"),
        (("train", "--ranks", "x"), 2, "--ranks takes `auto` or a whole number from 1, not `x`"),
    ],
)
def test_what_cannot_be_planned_is_refused(project, fdl, words, code, said):
    project(FILES)
    done = fdl("plan", *words)
    assert (done.exit, done.out) == (code, "")
    assert done.err.startswith(f"error: {said}")


def test_a_value_that_is_no_number_is_refused_as_an_argument(project, fdl):
    project(FILES)
    assert fdl("plan", "train", "--simulate", "fast").exit == 2


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train", "--simulate 40,100 --batches 40 --epochs 5"),
        ("train two --sync-ms 15", "--simulate 40,100 --sync-ms 15 --batches 40 --epochs 2"),
        ("train --epochs 1 --batches 7 --json", "--simulate 40,100 --batches 7 --epochs 1 --json"),
        ("train two --ranks 2 --x", "--simulate 40,100 --batches 40 --epochs 2"),
    ],
)
def test_a_simulation_takes_its_lengths_from_the_manifest(fdl, words, expected):
    done = fdl("plan", *words.split(), "--simulate", "40,100")
    assert (done.exit, done.out) == (3, f"{expected}\n")


def test_the_real_prediction_answers(project, fdl):
    pytest.importorskip("flodl.ranks.simulate")
    project(FILES)
    done = fdl("plan", "train", "--simulate", "40,100", "--sync-ms", "15", "--json")
    assert done.exit == 0, done.err
    assert json.loads(done.out)


def test_nothing_is_written_and_the_program_is_not_started(project, fdl, tmp_path):
    project(FILES)
    before = sorted(tmp_path.rglob("*"))
    assert "nobody starts me" not in fdl("plan", "train", "two").out
    assert sorted(tmp_path.rglob("*")) == before
