"""All ranks of a training act after the same step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fdl.runs.follow import parse, tell
from fdl.runs.run import read
from flodl import Callback, RunDirectory
from flodl.ranks.group import Group
from flodl.train.observers.journal import Journal
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Outcome, train
from tests.waiting import wait_for

posix_only = pytest.mark.skipif(os.name != "posix", reason="needs Unix sockets")


class Telling(Callback):
    """Tells the training several things after the fourth step of rank 0, as fdl does.

    The training ends once it was told all of them.
    """

    def __init__(self, folder: Path, acts: list[list[str]]) -> None:
        self._folder, self._acts = folder, acts
        self._thread: threading.Thread | None = None
        self.answers: list[dict[str, Any]] = []

    def on_step_end(self, run: Any) -> None:
        if self._thread is None and run.global_step >= 4:
            self._thread = threading.Thread(target=self._tell)
            self._thread.start()
        if self._thread is not None and not self._thread.is_alive():
            run.stop("told")

    def _tell(self) -> None:
        found = read(self._folder)
        assert found is not None
        for words in self._acts:
            self.answers.append(tell(found, parse(words), 20))

    def on_train_end(self, _run: Any) -> None:
        assert self._thread is not None
        self._thread.join()


def told(group: Group, policy: str, folder: Path, acts: list[list[str]]) -> Outcome:
    builder: dict[str, Any] = {"deterministic": True}
    if group.leads:
        run = RunDirectory.create(folder / "runs")
        builder |= {"run_dir": run, "callbacks": Telling(run.path, acts)}
    return train(group, n=4000, epochs=1000, policy=policy, builder=builder)


@posix_only
@pytest.mark.parametrize(
    "policy", [pytest.param("sync", marks=pytest.mark.slow), "cadence", "async"]
)
def test_all_ranks_change_the_rate_after_the_same_step(
    ranks: Ranks, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tempfile.TemporaryDirectory(prefix="flodl-")  # paths of sockets must be short
    monkeypatch.setenv("XDG_RUNTIME_DIR", private.name)
    acts = [["lr=0.001"], ["checkpoint"], ["pause"], ["continue"]]
    outcomes = ranks(2, told, policy, tmp_path, acts)
    [run] = (tmp_path / "runs").iterdir()
    recorded = Journal.read(run / "acts.jsonl")
    assert [act.act for act in recorded] == ["lr", "checkpoint", "pause", "continue"]
    before = [sum(rate == outcomes[0].rates[0] for rate in one.rates) for one in outcomes]
    assert all(set(one.rates) == {outcomes[0].rates[0], 0.001} for one in outcomes)
    assert recorded[0].old == outcomes[0].rates[0]
    assert recorded[0].step == before[0]  # the steps of rank 0
    assert torch.equal(outcomes[0].params[0], outcomes[1].params[0])
    assert json.loads((run / "run.json").read_text())["state"] == "complete"
    private.cleanup()


PROGRAM = """
import sys, time
from flodl import RunDirectory, Trainer, entry
from tests.flodl.distributed.trainings import Numbers, linear, sgd

def loss(net, batch):
    time.sleep(0.005)
    return (net(batch[0]) - batch[1]).square().mean()

def main(resume, epochs):
    with RunDirectory.create("runs", resume=resume or None) as run:
        trainer = Trainer.builder(linear, sgd, loss).dataset(Numbers(400)).batch_size(8)
        trainer.num_epochs(int(epochs)).ranks(2).policy("sync").run_dir(run).run()

if __name__ == "__main__":
    sys.exit(entry(lambda args: main(*args), sys.argv[1:]))
"""


@posix_only
@pytest.mark.slow
def test_ranks_that_a_program_started_stop_when_told_and_are_resumed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}

    said = tmp_path / "stderr"

    def start(*words: str) -> subprocess.Popen[bytes]:
        with said.open("w") as errors:
            argv = [sys.executable, "program.py", *words]
            return subprocess.Popen(argv, cwd=tmp_path, env=env, stderr=errors)

    with start("", "100000") as child:
        folder = wait_for(lambda: next(tmp_path.glob("runs/[!.]*/run.json"), None)).parent
        wait_for(lambda: "socket" in json.loads((folder / "run.json").read_text()))
        run = read(folder)
        assert run is not None
        answers = [tell(run, parse([word]), 30) for word in ("lr=0.001", "stop")]
        assert child.wait(60) == 130
    assert said.read_text().strip() == "interrupted"  # nothing of the end of the interpreters
    record = json.loads((run.path / "run.json").read_text())
    assert (record["state"], (run.path / "last.fdl").is_file()) == ("interrupted", True)
    batches = 2 * answers[1]["step"] - 50 * record["epochs"]  # an epoch has 50, a step one per rank
    assert f" {batches} batches of all ranks" in record["error"]
    with start("last", str(record["epochs"] + 2)) as resumed:
        assert resumed.wait(120) == 0
    [again] = (one for one in tmp_path.glob("runs/*/acts.jsonl") if one.parent != run.path)
    assert [act.act for act in Journal.read(again)] == ["lr"]
    rates = (again.parent / "metrics.csv").read_text().splitlines()
    column = rates[0].split(",").index("lr")
    assert float(rates[-1].split(",")[column]) == 0.001
