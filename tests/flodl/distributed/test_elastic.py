"""Ranks that come and go: what dies is trained by others, who joins gets all, nothing is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from flodl import Trainer
from flodl.ranks.elastic.group import ElasticGroup
from flodl.ranks.elastic.meeting_place import BIND_VARIABLE, MeetingPlace, lighthouse
from flodl.ranks.group import Group
from flodl.ranks.launch.launcher import JOIN_VARIABLE
from flodl.ranks.signature import signature
from flodl.train.run.verify import verify_run
from tests import fork_server, typed
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Numbers, Outcome, linear, sgd, train
from tests.rows import each_row
from tests.waiting import wait_for

LONG = 200.0
"""Seconds: seven processes train, beside the other tests."""

PROGRAM = Path(__file__).with_name("programs") / "elastic.py"


@dataclass
class Elastic:
    """A training in a folder, and its processes."""

    folder: Path
    processes: list[subprocess.Popen[bytes]]

    def start(self, name: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start the program; what it says goes to ``name``."""
        usual = {k: v for k, v in os.environ.items() if not k.startswith(("FLODL", "TORCHELASTIC"))}
        python = fork_server.torch_program(os.environ)
        with (self.folder / name).open("wb") as out:
            process = subprocess.Popen(
                [python, PROGRAM],
                env=usual | {"FOLDER": str(self.folder), "STARTS_RANKS": python, **environ},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        typed.note(
            (str(PROGRAM),), self.folder, os.environ, lambda: (process.poll(), self.said(name))
        )
        return process

    def said(self, name: str = "first") -> str:
        return (self.folder / name).read_text()

    def address(self) -> str:
        """Return the address that the training has printed."""
        found = wait_for(lambda: re.search(rf"{JOIN_VARIABLE}=(\S+)", self.said()), LONG)
        return found[1]

    def epochs(self, rank: str) -> list[list[str]]:
        """Return the rows of a rank: number of an epoch, digest of the weights, ranks."""
        files = list(self.folder.glob(f"rank-{rank}-*"))
        return [line.split() for file in files for line in file.read_text().splitlines()]

    def pid(self, rank: str) -> int:
        """Return the process of a rank, once it has ended an epoch."""
        wait_for(lambda: self.epochs(rank), LONG, f"rank {rank} has not ended an epoch")
        return int(next(self.folder.glob(f"rank-{rank}-*")).name.rpartition("-")[2])

    def more_epochs(self, rank: str, count: int = 2) -> None:
        """Wait until a rank has ended some further epochs."""
        before = len(self.epochs(rank))
        wait_for(lambda: len(self.epochs(rank)) >= before + count, LONG, self.said())

    def end(self) -> None:
        """Ask for the end of the training."""
        (self.folder / "enough").touch()

    @property
    def run(self) -> Path:
        return next((self.folder / "runs").iterdir())


@pytest.fixture
def elastic(tmp_path: Path) -> Iterator[Elastic]:
    """A folder for one training; all its processes end with the test."""
    made = Elastic(tmp_path, [])
    yield made
    for process in made.processes:
        process.terminate()
    for process in made.processes:
        process.wait()


@pytest.mark.parametrize("exchange", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_one_of_three_ranks_is_killed_and_another_joins(
    elastic: Elastic, monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    monkeypatch.setenv("EXCHANGE", exchange)
    first = elastic.start("first")
    address = elastic.address()
    elastic.pid("0")
    joins = elastic.start("second", **{JOIN_VARIABLE: address})
    differs = elastic.start("third", BATCH_SIZE="8", **{JOIN_VARIABLE: address})
    stranger = elastic.start("fourth", **{JOIN_VARIABLE: address + "x"})
    elastic.pid("joined")

    os.kill(elastic.pid("1"), signal.SIGKILL)
    wait_for(lambda: "1 of the ranks left; 3 train on" in elastic.said(), LONG)
    elastic.more_epochs("0")
    assert differs.wait(LONG) == 1
    assert "batch_size is 4 on a rank of the training and 8 on this one" in elastic.said("third")
    assert stranger.wait(LONG) == 1
    assert "the token of this rank is not the one of the training" in elastic.said("fourth")
    elastic.end()
    assert first.wait(LONG) == 0, elastic.said()
    assert joins.wait(LONG) == 0, elastic.said("second")
    told = elastic.said("second").splitlines()
    assert told[0] == "  joining the training; its first rank prints the epochs"
    assert told[-1] == "  the training has ended"

    weights = defaultdict(set)
    for epoch, digest, _ in elastic.epochs("*"):
        weights[int(epoch)].add(digest)
    assert all(len(digests) == 1 for digests in weights.values())
    last = str(max(weights))
    assert all(elastic.epochs(rank)[-1][0] == last for rank in ("0", "2", "joined"))
    proof = verify_run(elastic.run)
    assert proof.proven
    assert proof.samples_once == 240 * len(weights)
    assert len(proof.rank_samples) == 3 or proof.rank_samples[3] > 0
    record = json.loads((elastic.run / "run.json").read_text())
    assert not record.get("restarts")


def test_a_rank_that_joins_takes_part_in_the_next_checkpoint(
    elastic: Elastic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_STEPS", "1")
    first = elastic.start("first", RANKS="2")
    address = elastic.address()
    elastic.pid("0")
    joins = elastic.start("second", RANKS="2", **{JOIN_VARIABLE: address})
    elastic.pid("joined")
    elastic.more_epochs("0")
    elastic.end()
    assert first.wait(LONG) == 0, elastic.said()
    assert joins.wait(LONG) == 0, elastic.said("second")
    assert not (elastic.folder / "repeated").exists()


def test_rank_0_is_killed_and_the_next_one_writes(elastic: Elastic) -> None:
    first = elastic.start("first", RANKS="2")
    elastic.pid("1")
    elastic.more_epochs("0")
    os.kill(elastic.pid("0"), signal.SIGKILL)
    wait_for(lambda: "1 of the ranks left; 1 train on" in elastic.said(), LONG)
    before = (elastic.run / "last.fdl").stat().st_mtime_ns
    elastic.more_epochs("1")
    wait_for(lambda: (elastic.run / "last.fdl").stat().st_mtime_ns > before, LONG)
    elastic.end()
    assert first.wait(LONG) == 0, elastic.said()
    assert "rank 0 ended with signal SIGKILL; the others train on" in elastic.said()
    assert elastic.said().count("another one writes now") == 1

    epochs = [int(epoch) for epoch, _, _ in elastic.epochs("1")]
    assert epochs == list(range(len(epochs)))
    record = json.loads((elastic.run / "run.json").read_text())
    assert record["state"] == "complete"
    assert record["epochs"] == len(epochs)
    assert not record.get("restarts")
    rows = (elastic.run / "metrics.csv").read_text().splitlines()[1:]
    assert [int(row.partition(",")[0]) for row in rows] == [epoch + 1 for epoch in epochs]
    assert (elastic.run / "model.fdl").is_file()
    proof = verify_run(elastic.run)
    assert proof.proven
    assert proof.samples_once == 240 * len(epochs)


@pytest.mark.slow
def test_without_its_lighthouse_a_training_ends_with_a_checkpoint_and_continues(
    elastic: Elastic,
) -> None:
    first = elastic.start("first", RANKS="2")
    elastic.pid("1")
    (elastic.folder / "dark").touch()
    wait_for(lambda: "the lighthouse is gone, through which ranks" in elastic.said(), LONG)
    wait_for(lambda: "starting all ranks again (1 of 3)" in elastic.said(), LONG)
    resumed = wait_for(lambda: re.search(r"resumed from .*/last.fdl after", elastic.said()), LONG)
    assert resumed
    elastic.more_epochs("1")
    elastic.end()
    assert first.wait(LONG) == 0, elastic.said()
    record = json.loads((elastic.run / "run.json").read_text())
    assert (record["state"], record["restarts"]) == ("complete", 1)
    proof = verify_run(elastic.run)
    assert proof.proven
    assert proof.samples_once == 240 * record["epochs"]


@pytest.mark.slow
def test_a_rank_that_loses_the_others_and_the_lighthouse_together_ends(elastic: Elastic) -> None:
    first = elastic.start("first", RANKS="2", PACE_MS="1,60")
    elastic.pid("0")
    lost = elastic.pid("1")
    time.sleep(0.3)  # rank 1 is in the middle of a window, and rank 0 waits for it
    os.kill(lost, signal.SIGSTOP)
    (elastic.folder / "dark").touch()
    wait_for((elastic.folder / "is-dark").exists, LONG)
    os.kill(lost, signal.SIGKILL)
    wait_for(lambda: "starting all ranks again (1 of 3)" in elastic.said(), LONG)
    elastic.more_epochs("0")
    elastic.end()
    assert first.wait(LONG) == 0, elastic.said()
    assert verify_run(elastic.run).proven


def test_two_signals_one_after_the_other_end_all_ranks_with_a_checkpoint(elastic: Elastic) -> None:
    first = elastic.start("first", RANKS="2")
    ranks = [elastic.pid("0"), elastic.pid("1")]
    first.terminate()
    time.sleep(0.02)  # a process group and a launcher that passes the signal on send two
    first.terminate()
    assert first.wait(LONG) == 143, elastic.said()
    assert "interrupted after" in elastic.said()
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert (elastic.run / "last.fdl").is_file()


@pytest.mark.slow
def test_a_rank_ten_times_as_slow_is_not_left_out(elastic: Elastic) -> None:
    first = elastic.start("first", RANKS="2", PACE_MS="2,20")
    elastic.more_epochs("1", 6)
    elastic.end()
    assert first.wait(LONG) == 0, elastic.said()
    assert "of the ranks left" not in elastic.said()
    proof = verify_run(elastic.run)
    assert proof.proven
    fast, slow = proof.rank_samples[0], proof.rank_samples[1]
    assert 0 < slow < fast


@pytest.mark.slow
def test_a_rank_0_that_was_out_of_reach_ends_and_the_next_one_writes_on(elastic: Elastic) -> None:
    first = elastic.start("first", RANKS="3")
    elastic.pid("1")
    elastic.more_epochs("2")
    away = elastic.pid("0")
    os.kill(away, signal.SIGSTOP)
    wait_for(lambda: "1 of the ranks left; 2 train on" in elastic.said(), LONG)
    elastic.more_epochs("1")
    os.kill(away, signal.SIGCONT)
    wait_for(lambda: "this rank was out of reach" in elastic.said(), LONG)
    elastic.more_epochs("1")
    elastic.end()
    assert first.wait(LONG) == 0, elastic.said()

    record = json.loads((elastic.run / "run.json").read_text())
    assert record["state"] == "complete"
    proof = verify_run(elastic.run)
    assert proof.proven
    assert proof.samples_once == 240 * record["epochs"]


HEALS = """
import signal
from flodl.ranks.elastic.healing import Healing
healing = Healing("127.0.0.1", "token", {})
(healing.folder / "state.fdl").touch()
print(healing.folder, flush=True)
signal.pause()
"""


def test_the_next_rank_removes_the_state_that_a_killed_one_wrote(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with fork_server.start("-c", HEALS, torch=True, env=env) as killed:
        left = Path(killed.stdout.readline().strip())
        assert left.stat().st_mode & 0o077 == 0
        killed.kill()
        killed.wait()
    assert (left / "state.fdl").exists()
    with fork_server.start("-c", HEALS, torch=True, env=env) as rank:
        folder = Path(rank.stdout.readline().strip())
        assert list(tmp_path.iterdir()) == [folder]
        rank.send_signal(signal.SIGINT)
        rank.wait()
    assert not list(tmp_path.iterdir())


# --- Nobody leaves -----------------------------------------------------------------------------

EXACT = {"deterministic": True}


def elastic_train(group: Group, place: MeetingPlace, exchange: str) -> Outcome:
    """Train with a group of ranks that could come and go; the store of the others starts it."""
    own = ElasticGroup(
        place, rank=group.rank, device=torch.device("cpu"), starters=(group.store, group.world_size)
    )
    try:
        return train(own, settings={"elastic": True, "exchange": exchange}, builder=EXACT)
    finally:
        own.close()


def first_meeting(group: Group, place: MeetingPlace) -> tuple[bool, tuple[str, ...]]:
    """Meet for the first time; rank 0 comes only after the other one has met alone."""
    all_here = HashStore()
    all_here.add("here", 1)
    own = ElasticGroup(
        place, rank=group.rank, device=torch.device("cpu"), starters=(all_here, group.world_size)
    )
    own.signature = signature({})
    tell = own._tell

    def telling(*, at_window: bool) -> Any:
        present = tell(at_window=at_window)
        if len(present) == 1:
            group.store.set("has met alone", "")
        return present

    own._tell = telling
    if group.rank == 0:
        group.store.wait(["has met alone"])
    own.begin(lambda file: file.write_text("state"))
    own.meet()
    group.barrier()
    own.close()
    return own.leads, own.members


def test_a_rank_that_comes_before_rank_0_leaves_it_the_lead(ranks: Ranks) -> None:
    server, place = lighthouse({}, 1)
    (zero, there), (one, members) = ranks(2, first_meeting, place)
    server.shutdown()
    assert (zero, one) == (True, False)
    assert there == members == ("0000.000000", "0000.000001")


def fixed_train(group: Group, exchange: str) -> Outcome:
    return train(group, settings={"exchange": exchange}, builder=EXACT)


@pytest.mark.parametrize("exchange", ["float32", "int8"])
def test_as_long_as_nobody_leaves_all_is_the_same_bit_by_bit(ranks: Ranks, exchange: str) -> None:
    server, place = lighthouse({}, 1)
    elastic = ranks(3, elastic_train, place, exchange)
    server.shutdown()
    fixed = ranks(3, fixed_train, exchange)
    for one, other in zip(elastic, fixed, strict=True):
        assert one.batches == other.batches
        assert [value.tolist() for value in one.params] == [v.tolist() for v in other.params]
        assert one.averages == other.averages
        assert [m.avg_loss for m in one.metrics] == [m.avg_loss for m in other.metrics]


# --- What cannot be ----------------------------------------------------------------------------


@each_row(
    ("settings", "reason"),
    [
        ({"policy": "sync"}, "policy 'sync': a window is what can be lost"),
        ({"policy": "async"}, "policy 'async': a window is what can be lost"),
        ({"backend": "cpu"}, "backend 'cpu': it waits for late ranks by itself"),
        ({"speeds": [1, 2]}, "speeds: it is for ranks that are all known at the start"),
        ({"lr_scale_ratio": 1.0}, "lr_scale_ratio: it is for ranks that are all known"),
    ],
)
def test_what_needs_fixed_ranks_is_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"elastic with {reason}")):
        described().elastic().ddp(settings).run()


def test_an_address_without_elastic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOIN_VARIABLE, "http://127.0.0.1:9/#word")
    with pytest.raises(ValueError, match="start the program with --elastic"):
        described().run()


def test_torchrun_ends_all_ranks_so_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="elastic with torchrun, which ends all ranks"):
        described().elastic().run()


@each_row("text", ["http://host:1/", "host:1#word", "http://host/#word", "http://h:x/#word"])
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(RuntimeError, match="is not the address of a training"):
        MeetingPlace.given({JOIN_VARIABLE: text})


@each_row("address", ["192.0.2.1:80", "0.0.0.0:0", ":0", "[::]:0"])
def test_a_lighthouse_that_cannot_listen_says_what_to_set(address: str) -> None:
    with pytest.raises(RuntimeError, match=f"set {BIND_VARIABLE} to HOST:PORT of this host"):
        lighthouse({BIND_VARIABLE: address}, 1)


def test_an_address_at_which_nobody_listens_is_named() -> None:
    group = ElasticGroup(
        MeetingPlace("http://127.0.0.1:9", "word"), rank=None, device=torch.device("cpu")
    )
    group.signature = signature({})
    with pytest.raises(RuntimeError, match=r"the lighthouse http://127\.0\.0\.1:9 does not answer"):
        group.begin(lambda _: None)


def described() -> Trainer:
    return (
        Trainer.builder(linear, sgd, lambda model, batch: model(batch[0]).sum())
        .dataset(Numbers(20))
        .batch_size(4)
        .num_epochs(1)
    )
