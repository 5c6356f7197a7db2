"""Guards of two ranks: both go back to the same point, and the ledger stays a proof."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Batch, Callback, DataLoader, Rewind, RunDirectory, Trainer
from flodl.ranks.group import Group
from flodl.ranks.sample_ledger import MAGIC, _first_chain, _link
from flodl.train.observers.journal import Act, Journal
from flodl.train.run.verify import main, verify_run
from flodl.train.runner import carry_out
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.trainings import PATIENT, Numbers, linear, plan_of, sgd

SAMPLES, BATCH = 512, 8
STEPS = 32
"""Steps of an epoch: two ranks, one batch each."""


def bad_sample() -> int:
    """A sample of step 22 of the first epoch: the first 16 losses are not judged."""
    return int(DataLoader(Numbers(SAMPLES), BATCH).order(0)[44 * BATCH])


class Loss:
    """Spoils the loss of the batches that hold some samples."""

    def __init__(self, bad: tuple[int, ...], value: float) -> None:
        self.bad, self.value = set(bad), value

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return loss * self.value if self.bad & set(batch[2].tolist()) else loss


def train(
    group: Group,
    run: RunDirectory,
    bad: tuple[int, ...] = (),
    value: float = 1e6,
    guards: Mapping[str, Any] | None = None,
    resume: Path | None = None,
    policy: str = "sync",
    callbacks: tuple[Callback, ...] = (),
    precision: str | None = None,
    exact: bool = False,
) -> tuple[list[Tensor], list[float]]:
    """Train on this rank; return the weights and the mean losses of the epochs."""
    builder = (
        Trainer.builder(linear, sgd, Loss(bad, value))
        .dataset(Numbers(SAMPLES))
        .batch_size(BATCH)
        .num_epochs(2)
        .engine("eager")
        .progress(False)
        .checkpoint_steps(20)
        .ddp({"policy": policy, "backend": "cpu", **PATIENT})
        .callbacks(*callbacks)
        .run_dir(run.for_rank(group.rank))
        .resume(resume)
    )
    if guards is not None:
        builder.guards(**guards)
    if exact:
        builder.deterministic()
    if precision is not None:
        builder.precision(precision)
    handle = carry_out(plan_of(builder), group)
    weights = [parameter.detach().clone() for parameter in handle.model.parameters()]
    return weights, [metrics.avg_loss for metrics in handle.poll_metrics()]


def acts(run: RunDirectory, name: str) -> list[Act]:
    return [act for act in Journal.read(run.path / "acts.jsonl") if act.act == name]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("value", [1e6, float("nan")], ids=["spike", "nan"])
def test_two_ranks_go_back_together_and_the_ledger_proves_what_was_left_out(
    ranks: Ranks, tmp_path: Path, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path)
    (first, _), (second, _) = ranks(2, train, run, (bad_sample(),), value, {"every": 5})
    assert same(first, second)
    (skip, later) = acts(run, "skip")
    assert skip.value["batches"] == [44, 45]
    assert bad_sample() in skip.value["samples"]
    assert later.value["epoch"] == 1
    assert len(acts(run, "rewind")) == 2

    found = verify_run(run.path)
    assert found.proven
    assert (found.samples_left_out, found.samples_missing, found.samples_doubled) == (32, 0, 0)
    assert found.samples_once == 2 * SAMPLES - 32
    assert main([str(run.path)]) == 0
    assert "32 left out by a guard; acts.jsonl says why" in capsys.readouterr().out


def test_an_undisturbed_training_of_two_ranks_is_the_same_to_the_bit(
    ranks: Ranks, tmp_path: Path
) -> None:
    plain = ranks(2, train, RunDirectory.create(tmp_path / "plain"))
    guarded = ranks(2, train, RunDirectory.create(tmp_path / "guarded"), (), 1.0, {"every": 3})
    assert all(same(a[0], b[0]) for a, b in zip(plain, guarded, strict=True))
    assert plain[0][1] == guarded[0][1]


def test_verify_run_refuses_samples_that_no_guard_left_out(ranks: Ranks, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    ranks(2, train, run, (bad_sample(),), 1e6, {"every": 5})
    ledger = run.path / "samples.ledger"
    data, at, records = ledger.read_bytes(), len(MAGIC), []
    while at < len(data):
        size = struct.unpack("<I", data[at + 1 : at + 5])[0]
        records.append((data[at : at + 1], data[at + 5 : at + 5 + size]))
        at += 5 + size + 16

    def write(kept: list[tuple[bytes, bytes]]) -> None:
        out, chain = MAGIC, _first_chain()
        for kind, content in kept:
            head = kind + struct.pack("<I", len(content))
            chain = _link(chain, head, content)
            out += head + content + chain
        ledger.write_bytes(out)

    write([record for record in records if record[0] != b"S"])
    for name in ("last.fdl", "run.json"):
        (run.path / name).unlink()
    (run.path / "run.json").write_text('{"state": "complete", "epochs": 2}')
    missing = verify_run(run.path)
    assert not missing.proven
    assert missing.samples_missing == 32

    left_out = [content for kind, content in records if kind == b"S"]
    write([*records, (b"T", left_out[0])])
    both = verify_run(run.path)
    assert not both.proven
    assert {one.what for one in both.exceptions} == {
        "was left out by a guard, and trained or left out again"
    }


def test_giving_up_names_the_module_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    everywhere = tuple(range(SAMPLES))
    with pytest.raises(RankError, match="guards give up after 1 of 1 attempts"):
        ranks(2, train, run, everywhere, float("nan"), {"attempts": 1})
    (end,) = acts(run, "give_up")
    assert "epoch 0, batch 2" in end.detail


# --- Callbacks and resumed trainings -------------------------------------------------------------


class Rewinds(Callback):
    """Keeps the first weight after every step, and what the hook receives."""

    def __init__(self) -> None:
        self.kept: dict[int, float] = {}
        self.found: list[Rewind] = []

    def on_epoch_start(self, run: Any) -> None:
        self.kept = {run.global_step: self.weight(run)}

    def on_step_end(self, run: Any) -> None:
        self.kept[run.global_step] = self.weight(run)

    def on_rewind(self, run: Any, rewind: Rewind) -> None:
        assert run.global_step == rewind.restored_step
        assert self.weight(run) == self.kept[rewind.restored_step]
        self.found.append(rewind)

    def weight(self, run: Any) -> float:
        return float(next(run.model.parameters()).detach().flatten()[0])


def watched(group: Group, run: RunDirectory, bad: int) -> list[Rewind]:
    watch = Rewinds()
    train(group, run, (bad,), float("nan"), {"every": 5}, callbacks=(watch,))
    return watch.found


def test_callbacks_of_all_ranks_learn_of_a_rewind(ranks: Ranks, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    first, second = ranks(2, watched, run, bad_sample())
    assert first == second
    rewind, later = first
    assert (rewind.step, rewind.restored_step, rewind.epoch, rewind.attempt) == (22, 20, 0, 1)
    assert rewind.batches == (44, 45)
    assert bad_sample() in rewind.samples
    assert later.epoch == 1
    (act, _) = acts(run, "rewind")
    assert (act.old, act.value) == (rewind.step, rewind.restored_step)


class Stop(Callback):
    """Ends the training as an error does."""

    def on_step_end(self, run: Any) -> None:
        if run.global_step == 25:
            raise RuntimeError("stopped by the test")


def stopped(group: Group, run: RunDirectory, bad: int) -> None:
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train(group, run, (bad,), float("nan"), {"every": 5}, callbacks=(Stop(),))


def test_a_resumed_training_without_guards_leaves_the_same_batches_out(
    ranks: Ranks, tmp_path: Path
) -> None:
    first, second, third = (RunDirectory.create(tmp_path / name) for name in "abc")
    ranks(2, stopped, first, bad_sample())
    # The checkpoint is of step 20; the journal names the batch of step 22.
    again, guarded = (
        ranks(2, train, run, (), 1.0, guards, first.path)[0]
        for run, guards in ((second, None), (third, {"every": 5}))
    )
    assert same(again[0], guarded[0])
    assert again[1] == guarded[1]
    assert acts(second, "skip")[0].value["batches"] == [44, 45]
    assert verify_run(second.path).samples_left_out == 16
    windows = RunDirectory.create(tmp_path)
    ranks(2, train, windows, (), 1.0, None, first.path, "cadence")
    found = verify_run(windows.path)
    assert found.proven
    assert found.samples_left_out == 16


# --- Ranks that average weights ------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["cadence", "async"])
@pytest.mark.parametrize("value", [1e6, float("nan")], ids=["spike", "nan"])
def test_ranks_that_average_weights_go_back_to_the_start_of_a_window(
    ranks: Ranks, tmp_path: Path, policy: str, value: float
) -> None:
    run = RunDirectory.create(tmp_path)
    guards = {"every": 5}
    (first, _), (second, _) = ranks(
        2, partial(train, policy=policy), run, (bad_sample(),), value, guards
    )
    assert same(first, second)
    assert all(weight.isfinite().all() for weight in first)
    skipped = acts(run, "skip")
    assert [act.value["epoch"] for act in skipped] == [0, 1]
    assert skipped[0].value["batches"] == [44]
    assert all(bad_sample() in act.value["samples"] for act in skipped)

    found = verify_run(run.path)
    assert found.proven
    assert (found.samples_left_out, found.samples_missing, found.samples_doubled) == (16, 0, 0)
    assert found.samples_once == 2 * SAMPLES - 16


@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_guards_of_windows_change_no_bit_of_an_undisturbed_training(
    ranks: Ranks, tmp_path: Path, policy: str
) -> None:
    exactly = partial(train, policy=policy, exact=True)
    plain = ranks(2, exactly, RunDirectory.create(tmp_path / "plain"))
    run = RunDirectory.create(tmp_path / "guarded")
    guarded = ranks(2, exactly, run, (), 1.0, {"every": 1000})
    assert all(same(a[0], b[0]) for a, b in zip(plain, guarded, strict=True))
    assert plain[0][1] == guarded[0][1]


def test_a_deterministic_training_goes_back_in_the_same_way(ranks: Ranks, tmp_path: Path) -> None:
    exactly = partial(train, policy="cadence", exact=True)
    first, second = (
        ranks(2, exactly, RunDirectory.create(tmp_path), (bad_sample(),), 1e6, {"every": 5})[0]
        for _ in range(2)
    )
    assert same(first[0], second[0])
    assert first[1] == second[1]


@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_giving_up_in_a_window_names_the_module_and_the_rank(
    ranks: Ranks, tmp_path: Path, policy: str
) -> None:
    run = RunDirectory.create(tmp_path)
    everywhere = tuple(range(SAMPLES))
    with pytest.raises(RankError, match="guards give up after 1 of 1 attempts"):
        ranks(2, partial(train, policy=policy), run, everywhere, float("nan"), {"attempts": 1})
    (end,) = acts(run, "give_up")
    assert "the gradient of the output of module the model (Linear), on rank 0" in end.detail
