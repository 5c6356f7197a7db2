"""A training continues from a checkpoint as if it had never stopped."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flodl.train.run.part_states as states
import flodl.train.run.training_state as module
from fdl.base.units import counted
from flodl import FlowBuilder, NamedInputModule
from flodl.checkpoint import (
    checkpoint_keys,
    checkpoint_metadata,
    load_checkpoint_file,
    migrate_checkpoint_file,
    save_checkpoint_file,
)
from flodl.checkpoint.container import TRAINING, encode_header
from flodl.checkpoint.files import read_file_header
from flodl.data import DataLoader
from flodl.errors import ArchitectureMismatch, CheckpointError, ShapeMismatch
from flodl.train.observers.checkpoints import CheckpointKeeper
from flodl.train.observers.ema import WeightAverage
from flodl.train.run.loop_state import Position
from flodl.train.run.part_states import Parts
from flodl.train.run.run_directory import RunDirectory
from flodl.train.run.training_state import TrainingState

from .programs import line, network

START = Position(0, 0, 0)


class Plateau:
    """A schedule with a memory."""

    def __init__(self) -> None:
        self.best: float | None = None
        self.bad = 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "bad": self.bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.bad = state["best"], state["bad"]

    def observe(self, loss: float) -> float:
        self.bad = 0 if self.best is None or loss < self.best else self.bad + 1
        self.best = loss if self.best is None else min(loss, self.best)
        return 0.05 * 0.5**self.bad


class Scaler:
    """The numbers of a gradient scaler."""

    def __init__(self) -> None:
        self.scale, self.good = 65536.0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.good = state["scale"], state["good"]


class Training:
    """A loop with everything that has a state, and random numbers of every generator."""

    def __init__(self, optimizer: Any = None, model: Any = None, **loader: Any) -> None:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        self.model = (model or network)()
        make = optimizer or (lambda params: torch.optim.AdamW(params, lr=0.05, amsgrad=True))
        self.optimizer = make(list(self.model.parameters()))
        self.average = WeightAverage(self.model, 0.9)
        self.schedule, self.scaler = Plateau(), Scaler()
        options = {"batch_size": 3, "seed": 5, "drop_last": False} | loader
        self.loader = DataLoader(line(options.pop("n", 11)), **options)
        self.losses: list[float] = []
        self.done = START

    def parts(self) -> Parts:
        extra = {"losses": self.losses, "note": ("a", float("nan"), None, True)}
        return Parts(
            model=self.model,
            optimizer=self.optimizer,
            loader=self.loader,
            scaler=self.scaler,
            average=self.average,
            schedule=self.schedule,
            extra=extra,
        )

    def run(self, epochs: int, *, stop_at: int | None = None, each: Any = None) -> Training:
        for epoch in range(self.done.epoch, epochs):
            before = self.done.step if epoch == self.done.epoch else 0
            for step, batch in enumerate(self.loader.epoch(epoch), before):
                self._step(batch)
                total = self.done.global_step + 1
                self.done = Position(epoch, step + 1, total)
                if each is not None:
                    each(self)
                if total == stop_at:
                    return self
            self.done = Position(epoch + 1, 0, self.done.global_step)
        return self

    def _step(self, batch: Any) -> None:
        def loss_of() -> torch.Tensor:
            self.optimizer.zero_grad()
            noisy = batch["x"] + random.random() + np.random.normal()
            loss = nn.functional.mse_loss(self.model(noisy), batch["y"])
            loss.backward()
            return loss

        loss = self.optimizer.step(loss_of).item()
        self.average.update()
        self.scaler.scale, self.scaler.good = self.scaler.scale * 1.5, self.scaler.good + 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.observe(loss)
        self.losses.append(loss)
        end_step = getattr(self.model, "end_step", None)
        if end_step is not None:
            end_step()

    def save(self, path: Any) -> None:
        TrainingState.capture(self.parts(), self.done, {"loss": self.losses[-1]}).write(path)

    def resume(self, path: Any) -> Training:
        restored = TrainingState.restore(path, self.parts())
        self.done, self.losses = restored.position, restored.extra["losses"]
        return self

    def outcome(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "losses": self.losses,
            "position": self.done,
        }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "SparseAdam")
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_goes_on_to_the_bit(name, tmp_path):
    def make(params):
        params = [p for p in params if p.dim() == 2] if name == "Muon" else params
        half = len(params) // 2
        return OPTIMIZERS[name]([{"params": params[:half]}, {"params": params[half:]}], lr=0.01)

    def lbfgs(params):
        return torch.optim.LBFGS(params, lr=0.01, max_iter=3)

    make = lbfgs if name == "LBFGS" else make
    whole = Training(make).run(3)
    Training(make).run(3, stop_at=6).save(tmp_path / "last.fdl")
    assert same(Training(make).resume(tmp_path / "last.fdl").run(3).outcome(), whole.outcome())


@pytest.mark.parametrize("step", range(1, 13))
def test_a_resume_after_any_step_gives_what_the_uninterrupted_training_gives(step, tmp_path):
    whole = Training().run(3)
    Training().run(3, stop_at=step).save(tmp_path / "last.fdl")
    resumed = Training().resume(tmp_path / "last.fdl")
    assert resumed.done.global_step == step
    assert same(resumed.run(3).outcome(), whole.outcome())


def test_a_chain_of_resumes_at_the_ends_of_epochs_is_exact_too(tmp_path):
    whole = Training().run(4)
    Training().run(1).save(tmp_path / "last.fdl")
    for epochs in (2, 3):
        Training().resume(tmp_path / "last.fdl").run(epochs).save(tmp_path / "last.fdl")
    assert same(Training().resume(tmp_path / "last.fdl").run(4).outcome(), whole.outcome())


def test_what_a_graph_carries_between_calls_is_kept(tmp_path):
    def recurrent():
        flow = FlowBuilder.from_(nn.Linear(1, 4)).through(HalfThePast()).using("memory")
        return flow.tag("memory").through(nn.Linear(4, 1)).build()

    options = {"model": recurrent, "n": 12}
    whole = Training(**options).run(3)
    Training(**options).run(3, stop_at=5).save(tmp_path / "last.fdl")
    resumed = Training(**options).resume(tmp_path / "last.fdl").run(3)
    assert resumed.model.has_state()
    assert same(resumed.outcome(), whole.outcome())


class HalfThePast(NamedInputModule):
    """Adds half of what it gave in the call before."""

    def forward_named(self, x, refs):
        return x + 0.5 * refs["memory"]


def test_extra_values_come_back_as_they_were(tmp_path):
    Training().run(1).save(tmp_path / "last.fdl")
    training = Training()
    extra = TrainingState.restore(tmp_path / "last.fdl", training.parts()).extra
    assert extra["note"][0] == "a"
    assert np.isnan(extra["note"][1])
    assert extra["note"][2:] == (None, True)


def test_a_restored_generator_draws_what_it_would_have_drawn(tmp_path):
    Training().run(1).save(tmp_path / "last.fdl")
    drawn = (torch.rand(3).tolist(), random.random(), np.random.rand(), random.gauss(0, 1))
    for _ in range(2):
        Training().resume(tmp_path / "last.fdl")
        assert drawn == (torch.rand(3).tolist(), random.random(), np.random.rand(),
                         random.gauss(0, 1))  # fmt: skip


# --- To everyone else the file is a checkpoint of the model ----------------------------------


def test_other_readers_see_the_model_alone(tmp_path):
    training = Training().run(2, stop_at=6)
    path = tmp_path / "last.fdl"
    training.save(path)
    names = {"0/weight", "0/bias", "4/weight", "4/bias"} | {
        f"1/{name}" for name in ("weight", "bias", "running_mean", "running_var")
    }
    assert set(checkpoint_keys(path)) == names | {"1/num_batches_tracked"}
    facts = checkpoint_metadata(path)
    assert (facts["epoch"], facts["step"], TRAINING in facts) == ("1", "2", False)
    assert json.loads(facts["metrics"]) == {"loss": training.losses[-1]}
    other = network()
    report = load_checkpoint_file(path, other.named_parameters(), other.named_buffers())
    assert (report.skipped, report.missing) == ([], [])
    report = migrate_checkpoint_file(
        path, tmp_path / "new.fdl", other.named_parameters(), other.named_buffers()
    )
    assert report.is_complete
    assert not [e for e in read_file_header(tmp_path / "new.fdl").entries if "training" in e.name]
    with pytest.raises(CheckpointError, match="a model and no state of a training to resume"):
        Training().resume(tmp_path / "new.fdl")


def test_a_model_cannot_take_the_reserved_names(tmp_path):
    with pytest.raises(ValueError, match="no tensor of a model can be named"):
        save_checkpoint_file(tmp_path / "a.fdl", [(".training/x", torch.zeros(1))], [])


# --- What does not fit is refused, and nothing has changed ------------------------------------


def wide():
    return nn.Sequential(
        nn.Linear(1, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 1)
    )


def deep():
    return nn.Sequential(*network(), nn.Linear(1, 1))


def double():
    return network().double()


def two_groups(params):
    return torch.optim.AdamW([{"params": params[:2]}, {"params": params[2:]}], lr=0.05)


def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


MISFITS = {
    "shapes": ({"model": wide}, ShapeMismatch, r"0/weight: file \[8, 1\], model \[9, 1\]"),
    "layers": ({"model": deep}, CheckpointError, r"the file lacks 5/weight, 5/bias"),
    "dtype": ({"model": double}, CheckpointError, r"0/weight is torch.float32 in the file and"),
    "optimizer": ({"optimizer": sgd}, CheckpointError, "the state of AdamW, which SGD cannot"),
    "groups": (
        {"optimizer": two_groups},
        CheckpointError,
        r"a group of the file has 0\.bias, 0\.weight",
    ),
    "samples": ({"n": 14}, CheckpointError, "n was 11 and is 14"),
    "batch": ({"batch_size": 4}, CheckpointError, "batch_size was 3 and is 4"),
    "seed": ({"seed": 6}, CheckpointError, "seed was 5 and is 6"),
    "drop": ({"drop_last": True}, CheckpointError, "drop_last was False and is True"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_another_training_is_refused_and_left_alone(kind, tmp_path):
    options, error, text = MISFITS[kind]
    Training().run(2, stop_at=6).save(tmp_path / "last.fdl")
    other = Training(**options)
    check_refusal(other, tmp_path / "last.fdl", error, text)


def test_a_part_with_tensors_of_another_dtype_is_refused(tmp_path):
    class Counting:
        def __init__(self, dtype):
            self.counts = torch.zeros(2, dtype=dtype)

        def lr(self, _):
            return 0.1

        def state_dict(self):
            return {"counts": self.counts}

        def load_state_dict(self, state):
            self.counts = state["counts"]

    def parts(training, dtype):
        return dataclasses.replace(training.parts(), schedule=Counting(dtype))

    trained = Training().run(1)
    state = TrainingState.capture(parts(trained, torch.int64), Position(1, 0, 4))
    state.write(tmp_path / "last.fdl")
    TrainingState.restore(tmp_path / "last.fdl", parts(Training(), torch.int64))
    other = parts(Training(), torch.float32)
    with pytest.raises(
        CheckpointError,
        match=r"schedule\.counts is torch\.int64 \[2\] in the file and torch\.float32 \[2\] here",
    ):
        TrainingState.restore(tmp_path / "last.fdl", other)
    assert other.schedule.counts.dtype == torch.float32


def check_refusal(training, path, error, text):
    before = (copy.deepcopy(training.outcome()), training.loader.state_dict())
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(error, match=text):
        TrainingState.restore(path, training.parts())
    assert same((training.outcome(), training.loader.state_dict()), before)
    assert same(
        (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()), drawn
    )


def test_another_graph_is_refused_by_its_hash(tmp_path):
    def graph(extra=False):
        flow = FlowBuilder.from_(nn.Linear(1, 2)).through(nn.Linear(2, 1))
        return (flow.through(nn.ReLU()) if extra else flow).build()

    Training(model=graph).run(1).save(tmp_path / "last.fdl")
    other = Training(model=lambda: graph(extra=True))
    check_refusal(other, tmp_path / "last.fdl", ArchitectureMismatch, "structural hash")


@pytest.mark.parametrize("part", ["scaler", "average", "schedule", "loader"])
def test_a_part_that_only_one_side_has_is_refused(part, tmp_path):
    training = Training().run(1)
    training.save(tmp_path / "last.fdl")
    without = {name: getattr(training.parts(), name) for name in Parts.__slots__} | {part: None}
    with pytest.raises(
        CheckpointError, match=f"has the state of the {part}, and this training has"
    ):
        TrainingState.restore(tmp_path / "last.fdl", Parts(**without))
    TrainingState.capture(Parts(**without), START).write(tmp_path / "less.fdl")
    with pytest.raises(CheckpointError, match=f"lacks the state of the {part}, and it has one"):
        TrainingState.restore(tmp_path / "less.fdl", training.parts())


def test_a_part_that_refuses_its_state_at_last_undoes_the_others(tmp_path, monkeypatch):
    Training().run(2, stop_at=6).save(tmp_path / "last.fdl")

    other = Training()
    real, calls = states.set_generator_states, []

    def second_only(states):
        calls.append(states)
        if len(calls) == 1:
            raise RuntimeError("no such state")
        real(states)

    monkeypatch.setattr(states, "set_generator_states", second_only)
    check_refusal(other, tmp_path / "last.fdl", CheckpointError, "damaged training state: no such")


def test_a_refused_state_leaves_the_counters_of_a_graph_alone(tmp_path, monkeypatch):
    def graph():
        return FlowBuilder.from_(nn.Linear(1, 1)).build()

    Training(model=graph).run(2).save(tmp_path / "last.fdl")
    other = Training(model=graph).run(1, stop_at=2)
    before = other.model.observed_state()["counts"]
    tried = []

    def refuse(_states):
        tried.append(other.model.observed_state()["counts"])
        monkeypatch.undo()
        raise RuntimeError("no such state")

    monkeypatch.setattr(states, "set_generator_states", refuse)
    with pytest.raises(CheckpointError, match="no such state"):
        TrainingState.restore(tmp_path / "last.fdl", other.parts())
    assert tried[0] != before
    assert other.model.observed_state()["counts"] == before


# --- Damage ---------------------------------------------------------------------------------


def altered(path, change):
    """Write the file anew with another description, its checksum dropped: nothing else tells."""
    raw = path.read_bytes()
    header = read_file_header(path)
    body = raw[8 + int.from_bytes(raw[:8], "little") :]
    metadata = {k: v for k, v in header.metadata.items() if k != "digest"}
    metadata[TRAINING] = change(metadata[TRAINING])
    path.write_bytes(encode_header(header.entries, metadata) + body)


def check_mutations(tmp_path, number, seed):
    path, rng = tmp_path / "last.fdl", random.Random(seed)
    Training().run(2, stop_at=6).save(path)
    sound = path.read_bytes()
    refused = 0
    victim = Training()
    untouched = copy.deepcopy(victim.outcome())
    for _ in range(number):
        path.write_bytes(sound)
        altered(path, lambda text: mutated(text, rng))
        try:
            TrainingState.restore(path, victim.parts())
        except CheckpointError:
            refused += 1
            assert same(victim.outcome(), untouched)
        else:  # a digit of a number, for instance
            victim = Training()
            untouched = copy.deepcopy(victim.outcome())
    assert refused > 0.3 * number


def mutated(text, rng):
    data = bytearray(text.encode())
    start = rng.randrange(len(data))
    match rng.randrange(5):
        case 0:
            del data[start:]
        case 1:
            del data[start : start + rng.randint(1, 60)]
        case 2:
            data[start:start] = rng.choice([b"[", b"}", b'"', b"null", b"1e999", b"-", b"{}"])
        case 3:
            data[start] = rng.randrange(32, 127)
        case 4:
            value = json.loads(text)
            prune(value, rng)
            return json.dumps(value)
    return data.decode(errors="replace")


def prune(value, rng):
    """Replace or remove something deep inside."""
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        child = value[key]
        if rng.random() < 0.3 or not isinstance(child, dict | list) or not child:
            if rng.random() < 0.5:
                del value[key]
            else:
                value[key] = rng.choice([None, -1, 2.5, "x", [], {}, {"tensor": "y"}, 1 << 70])
            return
        value = child


def test_a_hundred_damaged_descriptions_restore_or_raise_and_change_nothing(tmp_path):
    check_mutations(tmp_path, 150, seed=3)


@pytest.mark.slow
def test_thousands_of_damaged_descriptions_restore_or_raise_and_change_nothing(tmp_path):
    check_mutations(tmp_path, 5000, seed=4)


def test_an_average_in_another_form_is_refused_and_changes_nothing(tmp_path):
    Training().run(1).save(tmp_path / "last.fdl")

    def listed(text):
        description = json.loads(text)
        pairs = description["average"]["dict"]
        description["average"]["dict"] = [[k, [] if k == "tensors" else v] for k, v in pairs]
        return json.dumps(description)

    altered(tmp_path / "last.fdl", listed)
    check_refusal(Training(), tmp_path / "last.fdl", CheckpointError, "damaged training state")


def test_truncated_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "last.fdl"
    Training().run(1).save(path)
    sound = path.read_bytes()
    for data, text in (
        (sound[:-9], "is truncated"),
        (b"", "is empty"),
        (b"\x80\x04" * 99, "not an"),
    ):
        path.write_bytes(data)
        check_refusal(Training(), path, CheckpointError, text)
    flipped = bytearray(sound)
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    check_refusal(Training(), path, CheckpointError, "is damaged: its checksum")
    check_refusal(Training(), tmp_path / "none.fdl", CheckpointError, "No such file")


# --- Keeping ----------------------------------------------------------------------------------


def test_what_the_keeper_writes_is_the_moment_it_was_asked(tmp_path):
    run = RunDirectory.create(tmp_path)
    training = Training()
    keeper = CheckpointKeeper(training.model, run)
    assert keeper.whereabouts() == "nothing was saved"
    keeper = CheckpointKeeper(training.model, run)
    moments = []

    def keep(training):
        if training.done.global_step % 2 == 0:
            keeper.save(training.parts(), training.done, {"loss": training.losses[-1]})
            moments.append((training.done, copy.deepcopy(training.outcome())))

    training.run(3, each=keep)
    said = keeper.whereabouts()
    position, outcome = moments[-1]
    done = f"{counted(position.epoch, 'complete epoch')} and {counted(position.step, 'step')}"
    assert said.endswith(f"last.fdl (after {done})")
    # Training went on after the copy was taken, in the same tensors.
    assert same(Training().resume(run.last_checkpoint).outcome(), outcome)
    assert [p.name for p in run.path.glob(".*")] == []


def test_a_newer_state_overtakes_one_that_waits(tmp_path, monkeypatch):
    run = RunDirectory.create(tmp_path)
    training = Training().run(1)
    keeper = CheckpointKeeper(training.model, run)
    started, gate, written = threading.Event(), threading.Event(), []
    write = TrainingState.write

    def slow_disk(state, path, **options):
        started.set()
        gate.wait()
        written.append(state.position.global_step)
        write(state, path, **options)

    monkeypatch.setattr(TrainingState, "write", slow_disk)
    keeper.save(training.parts(), Position(1, 0, 1), {})
    started.wait()
    for step in (2, 3, 4):
        keeper.save(training.parts(), Position(1, 0, step), {})
    gate.set()
    keeper.finish()
    assert written == [1, 4]
    assert Training().resume(run.last_checkpoint).done == Position(1, 0, 4)


def test_buffers_are_used_again_and_shared_weights_stay_shared(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    model = Tied()
    parts = Parts(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    first = TrainingState.capture(parts, START)
    kept = first.tensors["a/weight"]
    assert first.tensors["b/weight"] is kept
    with torch.no_grad():
        model.a.weight.fill_(7.0)
    assert not torch.equal(kept, model.a.weight)
    second = TrainingState.capture(parts, START, reuse=first)
    assert second.tensors["a/weight"] is kept
    assert torch.equal(kept, model.a.weight)
    second.write(tmp_path / "last.fdl")
    assert json.loads(checkpoint_metadata(tmp_path / "last.fdl")["aliases"]) == {
        "b.weight": "a.weight"
    }
    with torch.no_grad():
        model.a.weight.zero_()
    TrainingState.restore(tmp_path / "last.fdl", parts)
    assert bool((model.b.weight == 7.0).all())
    # No longer tied: the one buffer must not be used for both.
    model.b.weight = nn.Parameter(torch.zeros(4, 4))
    third = TrainingState.capture(
        Parts(model=model, optimizer=parts.optimizer), START, reuse=second
    )
    assert bool((third.tensors["a/weight"] == 7.0).all())
    assert bool((third.tensors["b/weight"] == 0.0).all())


def test_a_disk_that_refuses_is_reported_once_and_training_goes_on(tmp_path, capfd):
    run = RunDirectory.create(tmp_path)
    training = Training().run(1)
    keeper = CheckpointKeeper(training.model, run)
    run.last_checkpoint.mkdir()
    for _ in range(2):
        keeper.save(training.parts(), training.done, {})
    keeper.finish()
    said = capfd.readouterr().err
    assert said.count("last.fdl: Is a directory; training continues without it") == 1


def test_an_optimizer_that_cannot_be_kept_costs_the_resume_and_not_the_model(tmp_path, capfd):
    def odd(params):
        optimizer = torch.optim.SGD(params, lr=0.1)
        optimizer.param_groups[0]["hook"] = object()
        return optimizer

    run = RunDirectory.create(tmp_path)
    training = Training(odd).run(1)
    keeper = CheckpointKeeper(training.model, run)
    keeper.save(training.parts(), training.done, {"loss": 0.5})
    keeper.finish()
    assert "hook is a object, which a checkpoint cannot keep" in capfd.readouterr().err
    other = network()
    report = load_checkpoint_file(
        run.last_checkpoint, other.named_parameters(), other.named_buffers()
    )
    assert report.missing == []
    with pytest.raises(CheckpointError, match="no state of a training"):
        Training(odd).resume(run.last_checkpoint)


def test_a_checkpoint_keeps_the_label_of_the_model(tmp_path):
    flow = FlowBuilder.from_(nn.Linear(1, 1)).label("digits").build()
    Training(model=lambda: flow).run(1).save(tmp_path / "last.fdl")
    assert checkpoint_metadata(tmp_path / "last.fdl")["label"] == "digits"


def test_a_graph_gets_one_carried_value_for_each_of_its_tags():
    flow = FlowBuilder.from_(nn.Linear(1, 1)).build()
    with pytest.raises(ValueError, match="carries is not one tensor per tag"):
        states.checked_carried({"": [torch.zeros(1)]}, flow)


def test_states_with_other_keys_or_kinds_are_told_apart():
    assert module._difference({"a": 1}, {"b": 1}, "scaler") == (
        "only one of the file and the scaler has a, b"
    )
    assert module._difference(torch.zeros(2), 1.0, "scaler.scale") == (
        "scaler.scale is a Tensor in the file and a float here"
    )
    assert module._difference(True, 2.5, "scaler.scale") is None
    assert module._difference("x", [1], "a") == "a is a str in the file and a list here"
