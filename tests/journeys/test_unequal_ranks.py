"""Two ranks of unequal speed train a new project, and one of them is killed in the middle."""

from __future__ import annotations

import json
import re
import signal
from contextlib import suppress
from typing import Any

import psutil
import pytest

from tests.journeys.conftest import Figure
from tests.journeys.person import MARK, Person, Typed
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

EPOCHS = 8
KILLED_IN = 4
"""The epoch, counted from 1, in the middle of which a rank is killed."""
DDP = """
ddp:
  policy: cadence
  ranks: 2
  simulate_ms: [20, 50]
"""


@pytest.fixture
def owner(person: Person) -> Person:
    """Somebody with a new project that trains on two ranks, of which the second is slower."""
    person.type("fdl init demo")
    person.type("cd demo")
    person.type(f"cat >> train/fdl.yml <<'END'{DDP}END")
    return person


def rank_process(person: Person, rank: int) -> psutil.Process:
    """The process of a rank that this person has started."""

    def found() -> psutil.Process | None:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                told = process.environ()
                ours = told.get(MARK) == person.variables[MARK]
                # Processes of a rank have its variables, too: the rank is a child of torchrun.
                if ours and told.get("RANK") == str(rank):
                    parent = process.parent()
                    if parent is not None and "RANK" not in parent.environ():
                        return process
        return None

    process: psutil.Process = wait_for(found, 60, f"rank {rank} is not there")
    return process


def train_and_kill(person: Person, line: str, rank: int) -> Typed:
    """Type a training, kill a rank inside an epoch, and wait for the end of the command."""
    with person.start(line, limit=300) as training:
        training.wait_for(f"epoch {KILLED_IN}/{EPOCHS} ")
        rank_process(person, rank).send_signal(signal.SIGKILL)
        return training.finish()


def unbroken(typed: Typed) -> str:
    """What appeared, without the ends of lines that the width of the terminal makes."""
    return typed.raw.replace("\r", "")


def verified(person: Person, name: str = "last") -> dict[str, Any]:
    """What `fdl runs verify` says of a run, for programs."""
    found: dict[str, Any] = json.loads(person.run(f"fdl runs verify {name} --json").out)
    return found


def assert_every_sample_was_trained_once(person: Person) -> None:
    said = person.type("fdl runs verify last").text
    assert "proven (complete)" in said
    assert f"{EPOCHS} of {EPOCHS} complete" in said
    found = verified(person)
    samples = {epoch["samples"] for epoch in found["epochs"]}
    assert len(found["epochs"]) == EPOCHS
    assert len(samples) == 1
    assert found["samples_once"] == EPOCHS * samples.pop()
    assert found["samples_doubled"] == found["samples_missing"] == found["samples_left_out"] == 0
    # The faster rank trains more.
    assert found["rank_samples"]["0"] > 1.5 * found["rank_samples"]["1"] > 0


def runs(person: Person) -> list[dict[str, Any]]:
    """The runs of the project, the newest first."""
    listed: dict[str, list[dict[str, Any]]] = json.loads(person.run("fdl runs list --json").out)
    return listed["runs"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_training_goes_on_without_losing_a_sample(
    owner: Person, rank: int, figure: Figure
) -> None:
    ended = train_and_kill(owner, f"fdl train --epochs {EPOCHS}", rank)
    figure("seconds of the training with a restart", ended.seconds)
    assert ended.exit == 0, ended.text
    assert "the launcher starts all ranks again (1 of 3)" in unbroken(ended)
    assert re.search(r"resumed from \S+\s*\S+ after (2|3) complete epochs", ended.text)
    assert "on held-out digits" in ended.text
    assert_every_sample_was_trained_once(owner)
    (folder,) = (owner.folder / "runs/train").iterdir()
    record = json.loads((folder / "run.json").read_text())
    assert (record["state"], record["restarts"]) == ("complete", 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_without_restarts_the_message_names_the_command_that_finishes_it(
    owner: Person, rank: int, figure: Figure
) -> None:
    ended = train_and_kill(owner, f"fdl train --epochs {EPOCHS} --max-restarts 0", rank)
    assert ended.exit == 128 + signal.SIGKILL
    assert f"error: rank {rank} ended with signal SIGKILL" in ended.text
    assert re.search(r"the last checkpoint is runs/train/\S+/last\.fdl", unbroken(ended))

    # What was trained is kept: whole epochs, and a part of the next one.
    said = owner.type("fdl runs verify last").text
    assert f"of {EPOCHS} complete" in said
    left = verified(owner)
    assert left["proven"]
    assert KILLED_IN - 2 <= left["complete_epochs"] < EPOCHS
    assert left["samples_doubled"] == left["samples_missing"] == 0

    figure("seconds until the message", ended.seconds)
    (named,) = set(re.findall(r"continue with: (fdl .*)", ended.text))
    finished = owner.type(named.rstrip(), limit=300)
    figure("seconds of the rest", finished.seconds)
    assert "on held-out digits" in finished.text
    assert_every_sample_was_trained_once(owner)
    # Rank 0 writes how a run ends; where it was killed, fdl does.
    assert [run["state"] for run in runs(owner)] == ["complete", "failed"]
    # The second run has trained only what was left.
    assert "epoch 1/" not in finished.text
