"""All ranks of a training act after the same step."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fdl.run_directory.run import read
from fdl.run_directory.tell import parse, tell
from flodl import Callback, RunDirectory
from flodl.launch.group import Group
from flodl.train.journal import Journal
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Outcome, train

posix_only = pytest.mark.skipif(os.name != "posix", reason="needs Unix sockets")


class Telling(Callback):
    """Tells the training several things after the fourth step of rank 0, as fdl does."""

    def __init__(self, folder: Path, acts: list[list[str]]) -> None:
        self._folder, self._acts = folder, acts
        self._thread: threading.Thread | None = None
        self.answers: list[dict[str, Any]] = []

    def on_step_end(self, run: Any) -> None:
        if self._thread is None and run.global_step >= 4:
            self._thread = threading.Thread(target=self._tell)
            self._thread.start()

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
    return train(group, n=4000, epochs=1, policy=policy, builder=builder)


@posix_only
@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
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
    assert sum(before) == recorded[0].step
    assert torch.equal(outcomes[0].params[0], outcomes[1].params[0])
    assert json.loads((run / "run.json").read_text())["state"] == "complete"
    private.cleanup()
