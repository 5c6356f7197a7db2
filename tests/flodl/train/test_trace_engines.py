"""The trace of trainings with other engines, asynchronous checkpoints and restarts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fdl.runs.trace import first_difference
from fdl.runs.trace_file import read_trace
from flodl import Callback, RunDirectory
from flodl.train.callbacks import TrainingRun
from tests.flodl.train.test_step_trace import STEPS, samples, train


class Interrupted(Callback):
    """Ends a training with an error after some steps."""

    def __init__(self, after: int) -> None:
        self._after = after

    def on_step_end(self, run: TrainingRun) -> None:
        if run.global_step == self._after:
            raise RuntimeError("the power is gone")


def test_a_changed_sample_of_a_later_batch_is_named(tmp_path: Path) -> None:
    one = train(tmp_path)
    changed = one.samples[6][2]
    found = first_difference(
        read_trace(one.path), read_trace(train(tmp_path, data=samples(changed=changed)).path)
    )
    assert found is not None
    assert (found.what, found.step, found.place) == ("data content", 7, 2)
    assert found.detail == f"sample {changed} has other content, at position 2 of the batch"


def test_data_that_is_read_per_epoch_has_digests_of_its_batches(tmp_path: Path) -> None:
    streamed = {"loader_options": {"streaming": True}}
    one = train(tmp_path, **streamed)
    trace = read_trace(one.path)
    assert trace.sample_digests == b""
    assert len(trace.contents[1].single) == len(one.samples[0])
    changed = one.samples[0][1]
    other = train(tmp_path, data=samples(changed=changed), **streamed)
    found = first_difference(trace, read_trace(other.path))
    assert found is not None
    assert (found.what, found.step, found.place) == ("data content", 1, 1)
    assert f"sample {changed} " in found.detail


def test_a_restart_with_accumulation_continues_the_trace(tmp_path: Path) -> None:
    settings = {"accumulate": 2, "epochs": 3, "max_grad_norm": 1.0}
    whole = train(tmp_path / "whole", **settings)
    with pytest.raises(RuntimeError, match="the power is gone"):
        train(tmp_path / "torn", checkpoint_steps=2, callbacks=Interrupted(9), **settings)
    (torn,) = (tmp_path / "torn").iterdir()
    rest = train(tmp_path / "rest", resume=torn, **settings)
    trace = read_trace(rest.path)
    assert (trace.first, trace.last) == (9, read_trace(whole.path).last)
    assert first_difference(read_trace(whole.path), trace) is None
    assert first_difference(read_trace(whole.path), read_trace(torn)) is None


def test_checkpoints_that_are_written_beside_the_steps_do_not_change_it(tmp_path: Path) -> None:
    one = train(tmp_path / "one", checkpoint_steps=1)
    other = train(tmp_path / "other", checkpoint_steps=3)
    assert first_difference(read_trace(one.path), read_trace(other.path)) is None


@pytest.mark.slow
def test_the_compiled_engine_has_a_whole_trace(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, other = (train(tmp_path, engine="compiled", max_grad_norm=0.5) for _ in range(2))
    trace = read_trace(one.path)
    assert trace.last == 2 * STEPS
    assert len(trace.norms) == 2 * STEPS
    assert trace.state == "complete"
    assert first_difference(trace, read_trace(other.path)) is None


def test_a_run_says_how_its_program_was_started(tmp_path: Path) -> None:
    record = json.loads((RunDirectory.create(tmp_path).path / "run.json").read_text())
    assert record["cwd"] == str(Path.cwd())
    assert Path(record["typed"][0]).name == record["typed"][0]
    assert len(record["typed"]) >= 2
    assert record["launched_ranks"] is None
