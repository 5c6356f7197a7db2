"""One rank of a graph under fully_shard that is saved, loaded, trained and resumed.

Arguments: rank, number of ranks, folder. What happened goes to ``<folder>/rank-<rank>.json``.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import flodl.checkpoint.sharded
from fdl.runs.follow import parse, tell
from fdl.runs.run import read
from fdl.runs.trace import first_difference
from fdl.runs.trace_file import read_trace
from flodl import (
    Callback,
    FlowBuilder,
    RunDirectory,
    Trainer,
    checkpoint_metadata,
    load_optimizer_state,
    save_checkpoint,
    save_optimizer_state,
)
from flodl.checkpoint.sharded import whole
from flodl.errors import CheckpointError

RANK, RANKS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])


def graph(seed=0, *, shard=True):
    torch.manual_seed(seed)
    shared = nn.Linear(7, 7)
    flow = FlowBuilder.from_(nn.Linear(5, 7)).tag("enc").through(nn.BatchNorm1d(7))
    flow = flow.through(nn.Dropout(0.2)).through(shared).through(nn.Tanh()).through(shared)
    made = flow.through(nn.Linear(7, 1)).label("net").build()
    if shard:
        mesh = init_device_mesh("cpu", (RANKS,))
        fully_shard(made.get_submodule("enc"), mesh=mesh)
        fully_shard(made, mesh=mesh)
    return made


def values(model):
    state = model.state_dict().items()
    return {n: whole(t).detach().tolist() for n, t in state if isinstance(t, torch.Tensor)}


def bytes_are_those_of_one_device():
    told = {}
    for name in ("model.fdl", "model.fdl.gz"):
        path = FOLDER / f"sharded-{name}"
        graph().save_checkpoint(path)
        told[name] = path.is_file()  # on every rank, when the call returns
        if RANK == 0:
            graph(shard=False).save_checkpoint(FOLDER / name)
            told[name] = path.read_bytes() == (FOLDER / name).read_bytes()
    stream = io.BytesIO()
    model = graph()
    save_checkpoint(
        stream,
        model.named_parameters(remove_duplicate=False),
        [(n, b) for n, b in model.named_buffers()],
        model.structural_hash(),
        label="net",
    )
    wanted = (FOLDER / "sharded-model.fdl").read_bytes() if RANK == 0 else b""
    return told | {"stream": stream.getvalue() == wanted}


def loads_into_parts_also_after_an_evaluation():
    model = graph(seed=3)
    with torch.no_grad():
        model.eval()(torch.zeros(2, 5))  # the root now holds whole parameters
    report = model.load_checkpoint(FOLDER / "model.fdl")
    told = values(model) == values(graph(shard=False))
    with torch.no_grad():
        model(torch.zeros(2, 5))
    model.save_checkpoint(FOLDER / "again.fdl")
    same = (FOLDER / "again.fdl").read_bytes() == (FOLDER / "model.fdl").read_bytes()
    return {"values": told, "missing": report.missing, "again": same}


def a_failure_of_the_writer_is_raised_by_all():
    told = {}
    model = graph()
    for kind, path in {"open": "/proc/nowhere/model.fdl"}.items():
        try:
            model.save_checkpoint(path)
        except CheckpointError as error:
            told[kind] = str(error)

    class Full(io.BytesIO):
        def write(self, data):
            if len(data) == 5 * 7 * 4:
                raise OSError(28, "no space left")
            return super().write(data)

    try:
        save_checkpoint(Full(), model.named_parameters(), [])
    except (CheckpointError, OSError) as error:
        told["midway"] = str(error)
    model.save_checkpoint(FOLDER / "after.fdl")
    return told


def a_save_on_one_rank_ends_in_an_error():
    if RANKS == 1:
        return None
    model = graph()
    told = None
    if RANK == 0:
        flodl.checkpoint.sharded.PATIENCE_SECONDS = 0.3
        try:
            model.save_checkpoint(FOLDER / "alone.fdl")
        except CheckpointError as error:
            told = str(error)
        flodl.checkpoint.sharded.PATIENCE_SECONDS = 60.0
    dist.barrier()
    model.save_checkpoint(FOLDER / "together.fdl")
    return {"error": told, "file": (FOLDER / "alone.fdl").exists(), "later": True}


def a_snapshot_is_whole_and_is_saved():
    snapshot = graph().snapshot_cpu()
    snapshot.save_file(FOLDER / "snapshot.fdl")
    other = graph(seed=4, shard=False)
    if RANK == 0:
        other.load_checkpoint(FOLDER / "snapshot.fdl")
    return {
        "tensors": len(snapshot.params),
        "values": RANK > 0 or values(other) == values(graph(shard=False)),
    }


def optimizer_state_comes_back():
    inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))

    def step(model, optimizer):
        torch.manual_seed(RANK)
        model(inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model = graph()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step(model, optimizer)
    model.save_checkpoint(FOLDER / "stepped.fdl")
    save_optimizer_state(optimizer, FOLDER / "optimizer.fdl")
    step(model, optimizer)
    again = graph(seed=7)
    fresh = torch.optim.Adam(again.parameters(), lr=0.5)
    again.load_checkpoint(FOLDER / "stepped.fdl")
    load_optimizer_state(fresh, FOLDER / "optimizer.fdl")
    step(again, fresh)
    return values(again) == values(model)


INPUTS = torch.randn(24, 5, generator=torch.Generator().manual_seed(5))[RANK::RANKS]
TARGETS = INPUTS.sum(1, keepdim=True)


def training(epochs, run, ema, engine="auto"):
    def step(model, batch):
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)

    def evaluate(model):
        return {"error": nn.functional.mse_loss(model(INPUTS), TARGETS)}

    def draw_differently(epoch, _):
        if epoch == 0:
            torch.manual_seed(100 + RANK)

    builder = (
        Trainer.builder(lambda _: graph(), lambda ps: torch.optim.Adam(ps, 0.01), step)
        .dataset(TensorDataset(INPUTS, TARGETS))
        .batch_size(4)
        .num_epochs(epochs)
        .eval_fn(evaluate)
        .epoch_fn(draw_differently)
        .checkpoint_steps(2)
        .engine(engine)
        .max_grad_norm(1.0)
        .keep_best("error")
    )
    if run is not None:
        builder = builder.run_dir(run)
    return builder.ema(0.9) if ema else builder


def new_losses(handle):
    return [metrics.avg_loss for metrics in handle.poll_metrics()[1:]]


def own_run(name):
    """Only the first rank has a run directory; the others take part all the same."""
    return RunDirectory.create(FOLDER / name) if RANK == 0 else None


def a_training_is_resumed_exactly(ema):
    whole_run = own_run(f"straight-{ema}")
    straight = training(3, whole_run, ema).run()
    name = f"runs-{ema}"
    first = own_run(name)
    training(1, first, ema).run()
    second = own_run(name)
    told = {}
    if first is not None:
        told["files"] = sorted(path.name for path in first.path.glob("*.fdl"))
        (FOLDER / "source").write_text(str(first.last_checkpoint))
    dist.barrier()
    source = (FOLDER / "source").read_text()
    dist.barrier()
    resumed = training(3, second, ema).resume(source if RANK == 0 else None).run()
    told["losses"] = new_losses(resumed) == new_losses(straight)
    ours, theirs = resumed.join(), straight.join()
    told["weights"] = all(map(torch.equal, ours.params, theirs.params))
    # FSDP leaves buffers alone: each rank has its own, and the file those of the first.
    told["buffers"] = RANK > 0 or all(map(torch.equal, ours.buffers, theirs.buffers))
    if second is not None:
        model = graph(shard=False)
        model.load_checkpoint(second.last_checkpoint)
        told["last"] = values(model) == values(resumed.model)
        traces = read_trace(whole_run.path), read_trace(second.path)
        told["trace"] = first_difference(*traces) is None, traces[1].first, traces[1].last
    else:
        values(resumed.model)
    return told


class Counting(nn.Linear):
    """A layer whose extra state differs between ranks."""

    def __init__(self):
        super().__init__(5, 1)
        self.calls = {"count": 0, "seen": torch.zeros(1)}

    def forward(self, x):
        self.calls["count"] += RANK + 1
        self.calls["seen"] = self.calls["seen"] + x.detach().mean()
        return super().forward(x)

    def get_extra_state(self):
        return self.calls

    def set_extra_state(self, state):
        self.calls = state


class Queue:
    def __init__(self):
        self.values = []

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = list(state["values"])


def own_training(epochs, run, resume=None):
    mesh = init_device_mesh("cpu", (RANKS,))
    torch.manual_seed(4)
    critic = nn.Linear(1, 3)
    fully_shard(critic, mesh=mesh)
    second = torch.optim.Adam(critic.parameters(), lr=0.01)
    queue = Queue()

    def step(model, batch):
        inputs, targets = batch
        output = model(inputs)
        critic(output.detach()).square().mean().backward()
        second.step()
        second.zero_grad()
        queue.values.append(float(output.detach().sum()))
        return nn.functional.mse_loss(output, targets) * (1 + len(queue.values))

    def make(_):
        torch.manual_seed(6)
        model = nn.Sequential(Counting())
        fully_shard(model, mesh=mesh)
        return model

    builder = Trainer.builder(make, lambda ps: torch.optim.SGD(ps, 0.01), step)
    builder.dataset(TensorDataset(INPUTS, TARGETS)).batch_size(4).num_epochs(epochs)
    builder.engine("eager").checkpoint_steps(2)
    builder.state("queue", queue).state("second", second).state("critic", critic)
    if run is not None:
        builder.run_dir(run)
    model = builder.resume(resume).run().model
    moments = [whole(one["exp_avg"]).tolist() for one in second.state.values()]
    seen = model[0].calls["seen"].tolist()
    return [values(model[0]), values(critic), moments, queue.values, model[0].calls["count"], seen]


def own_state_is_resumed_exactly():
    straight = own_training(3, own_run("own-straight"))
    run = own_run("own")
    own_training(1, run)
    if run is not None:
        (FOLDER / "own-source").write_text(str(run.last_checkpoint))
    dist.barrier()
    source = (FOLDER / "own-source").read_text()
    resumed = own_training(3, own_run("own-resumed"), source if RANK == 0 else None)
    return {"same": resumed == straight, "counts": resumed[4]}


class AddsLayer(Callback):
    """Trains one more layer from the second epoch on; may fail inside that epoch."""

    def __init__(self, fails):
        self.fails = fails

    def on_epoch_start(self, run):
        if run.epoch == 1:
            added = list(run.model[3].parameters())
            for parameter in added:
                parameter.grad = None
            run.optimizer.add_param_group({"params": added, "lr": 0.05})

    def on_step_end(self, run):
        if self.fails and run.global_step == 24 // RANKS // 4 + 2:
            raise ArithmeticError


def modes_training(run, order=1, resume=None, fails=False):
    """Parts in eval mode, an optimizer with its parameters in some order, an added group."""
    mesh = init_device_mesh("cpu", (RANKS,))

    def make(_):
        torch.manual_seed(6)
        parts = nn.BatchNorm1d(7), nn.Dropout(0.5), nn.Linear(7, 7), nn.Linear(7, 1)
        model = nn.Sequential(nn.Linear(5, 7), *parts)
        fully_shard(model[0], mesh=mesh)
        fully_shard(model[3], mesh=mesh)
        fully_shard(model, mesh=mesh)
        model[1].eval()
        model[2].eval()
        return model

    def optimizer(parameters):
        first, last = parameters[:4], parameters[6:]
        return torch.optim.AdamW([*first, *last][::order], 0.01)

    def step(model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    builder = Trainer.builder(make, optimizer, step)
    builder.dataset(TensorDataset(INPUTS, TARGETS)).batch_size(4).num_epochs(3)
    builder.engine("eager").checkpoint_steps(1).callbacks(AddsLayer(fails))
    builder.eval_fn(lambda model: {"error": nn.functional.mse_loss(model(INPUTS), TARGETS)})
    if run is not None:
        builder.run_dir(run)
    model = builder.resume(resume).run().model
    return values(model), [module.training for module in model.modules()]


def modes_and_named_state_come_back():
    straight, modes = modes_training(own_run("modes-straight"))
    run = own_run("modes")
    with contextlib.suppress(ArithmeticError):
        modes_training(run, fails=True)
    if run is not None:
        (FOLDER / "modes-source").write_text(str(run.last_checkpoint))
    dist.barrier()
    source = (FOLDER / "modes-source").read_text() if RANK == 0 else None
    resumed = modes_training(own_run("modes-resumed"), -1, source)
    return {"same": resumed == (straight, modes), "modes": modes}


def values_that_are_not_finite_are_no_improvement():
    told = iter([math.nan, 3.0, math.inf, math.nan, 2.0])
    run = own_run("odd")
    builder = training(5, run, ema=False).eval_fn(lambda _: {"error": next(told)})
    done = builder.early_stop("error", window=2, patience=2).run()
    best = run and checkpoint_metadata(run.path / "best.fdl")["epoch"]
    return {"stopped": done.stopped, "epochs": len(done.poll_metrics()), "best": best}


class Interrupts(Callback):
    """Sends the last rank a signal after a step."""

    def __init__(self, step):
        self.step = step
        self.steps = 0

    def on_step_end(self, run):
        self.steps = run.global_step
        if run.global_step == self.step and RANK == RANKS - 1:
            os.kill(os.getpid(), signal.SIGINT)


def a_signal_to_one_rank_saves_the_training_of_all():
    straight = training(3, own_run("uninterrupted"), ema=False).run()
    run, hook = own_run("interrupted"), Interrupts(24 // RANKS // 4 + 1)
    told = {}
    try:
        training(3, run, ema=False).callbacks(hook).run()
    except KeyboardInterrupt as stop:
        told["said"] = str(stop)
    told["steps"] = hook.steps
    if run is not None:
        (FOLDER / "interrupted-source").write_text(str(run.last_checkpoint))
    dist.barrier()
    source = (FOLDER / "interrupted-source").read_text() if RANK == 0 else None
    resumed = training(3, own_run("continued"), ema=False).resume(source).run()
    told["weights"] = all(map(torch.equal, resumed.join().params, straight.join().params))
    return told


class Stops(Callback):
    """The last rank stops the training after its second step."""

    def on_step_end(self, run):
        if RANK == RANKS - 1 and run.global_step == 2:
            run.stop("enough")


class Tells(Callback):
    """Tells the training a learning rate after the second step of the first rank, as fdl does."""

    def __init__(self, run):
        self.run, self.thread, self.rates = run, None, []

    def on_step_end(self, run):
        self.rates.append(run.optimizer.param_groups[0]["lr"])
        if self.run is None:
            return
        if run.global_step == 2:
            self.thread = threading.Thread(target=self.tell)
            self.thread.start()
        if run.global_step > 2 and self.thread.is_alive():
            self.thread.join(0.05)

    def tell(self):
        tell(read(self.run.path), parse(["lr=0.25"]), 20)

    def on_train_end(self, _run):
        if self.thread is not None:
            self.thread.join()


def acts_reach_all_ranks():
    stopped = training(3, own_run("stopped"), ema=False).callbacks(Stops()).run()
    with tempfile.TemporaryDirectory(prefix="flodl-") as private:  # names of sockets are short
        os.environ["XDG_RUNTIME_DIR"] = private
        run = own_run("told")
        hook = Tells(run)
        training(6, run, ema=False).callbacks(hook).run()
        dist.barrier()
    rates = [hook.rates.count(rate) for rate in (0.01, 0.25)]
    return {"stopped": stopped.stopped, "rates": rates, "steps": len(hook.rates)}


CHECKS = {
    "bytes": bytes_are_those_of_one_device,
    "load": loads_into_parts_also_after_an_evaluation,
    "failure": a_failure_of_the_writer_is_raised_by_all,
    "alone": a_save_on_one_rank_ends_in_an_error,
    "snapshot": a_snapshot_is_whole_and_is_saved,
    "optimizer": optimizer_state_comes_back,
    "training": lambda: a_training_is_resumed_exactly(ema=False),
    "own": own_state_is_resumed_exactly,
    "average": lambda: a_training_is_resumed_exactly(ema=True),
    "modes": modes_and_named_state_come_back,
    "odd": values_that_are_not_finite_are_no_improvement,
    "signal": a_signal_to_one_rank_saves_the_training_of_all,
    "acts": acts_reach_all_ranks,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=RANKS
    )
    results = {}
    for name, check in CHECKS.items():
        results[name] = check()
        (FOLDER / f"rank-{RANK}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
