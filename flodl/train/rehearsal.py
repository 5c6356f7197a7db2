"""A rehearsal: the two largest batches, one evaluation and one checkpoint, measured.

It runs the loop of a real training with the program's own parts. So an error in the model, the
evaluation, a callback or the checkpoint shows up after seconds. Nothing is left on the disk.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from fdl.base.files import replace_text
from flodl.data import BatchDataSet, DataLoader
from flodl.data.adapters import as_batch_data_set, declared_names, stays_in_memory
from flodl.device import select_device
from flodl.monitor import Monitor
from flodl.monitor.ledger import Account, TimeLedger
from flodl.monitor.records import to_json
from flodl.ranks.settings import DdpRunConfig
from flodl.train.callbacks import Callback, TrainingRun
from flodl.train.parts import make_loader
from flodl.train.peak_memory import MARGIN, GpuMemory, GpuMeter, PeakMemory, available_bytes, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from flodl.train.handle import TrainerHandle
    from flodl.train.settings import TrainingPlan

    Train = Callable[[TrainingPlan, TimeLedger | None], TrainerHandle]
    EvalFn = Callable[[Any], Mapping[str, float | Tensor]]
    from flodl.data import Batch, IterableLoader


STEPS = 2
"""Optimizer steps of a rehearsal."""

_NOISE_BYTES = 4 << 20
"""A step that needs less memory than this says nothing about larger batches."""

_STEP = (Account.DATA, Account.FORWARD, Account.BACKWARD, Account.OPTIMIZER, Account.SYNC)
_SHOWN = (*_STEP[:4], Account.EVALUATION, Account.CHECKPOINT)
_AFTER = {
    Account.SETUP: "reading the first batch",
    Account.DATA: "the forward pass",
    Account.FORWARD: "the backward pass",
    Account.BACKWARD: "the optimizer step",
    Account.OPTIMIZER: "reading the next batch",
    Account.EVALUATION: "the work at the end of the epoch",
    Account.CHECKPOINT: "the end of the training",
}


class Rehearsed(SystemExit):
    """The rehearsal is over; ends the program with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


@final
@dataclass(frozen=True)
class Phase:
    """One kind of work of a rehearsal.

    Attributes:
        name: data, forward, backward, optimizer, evaluation or checkpoint.
        seconds: Of the last step; of the whole work for evaluation and checkpoint.
        peak_bytes: The highest memory while it ran: of tensors on a CUDA device, else of the
            process.
    """

    name: str
    seconds: float
    peak_bytes: int


@final
@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal.

    Attributes:
        device: The device that trained.
        parameters: Number of parameters of the model.
        batch_size: The samples of a full batch; None if the data makes its own batches.
        batches: Batches of an epoch; None if unknown.
        epochs: Epochs of the training.
        largest: How the largest batches were found.
        phases: The measured phases, in their order.
        step_seconds: Time of one batch with everything that belongs to it, from the second step.
        epoch_seconds: Estimated time of an epoch with evaluation and checkpoint; None if the
            number of batches is unknown.
        peak_bytes: Highest memory of all phases.
        before_bytes: Memory before the first step: the model, and on a CPU the whole program.
        available_bytes: Memory that the training could use in all.
        largest_batch_size: Estimate of the largest batch that fits into 90 % of the memory, at most
            the samples of the data; None if a step needs too little memory to tell, or the batch
            size is unknown.
        gpu: What it would need on a GPU that is not here, if one was named.
        run_bytes: Size of the run directory at the end; None without one.
        failed_in: What the training was doing when it failed; empty if it did not fail.
        error: The error, or empty.
    """

    device: str
    parameters: int
    batch_size: int | None
    batches: int | None
    epochs: int
    largest: str
    phases: tuple[Phase, ...] = ()
    step_seconds: float | None = None
    epoch_seconds: float | None = None
    peak_bytes: int = 0
    before_bytes: int = 0
    available_bytes: int = 0
    largest_batch_size: int | None = None
    gpu: GpuMemory | None = None
    run_bytes: int | None = None
    failed_in: str = ""
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON data, with the number of the format."""
        total = None if self.epoch_seconds is None else self.epoch_seconds * self.epochs
        return {"version": 1, **asdict(self), "total_seconds": total}


def rehearse_for(file: Path, plan: TrainingPlan, train: Train) -> None:
    """Rehearse a plan, write the result, and end the program.

    Args:
        file: For the result.
        plan: The plan of the whole training.
        train: Carries out a plan in this process, with a time ledger.

    Raises:
        Rehearsed: Always, unless the rehearsal fails with an error of the program.
    """
    result, error = rehearse(plan, train)
    replace_text(file, to_json(result.as_json()))
    if error is not None:
        raise error
    raise Rehearsed


def rehearse(
    plan: TrainingPlan, train: Train, available: int | None = None
) -> tuple[Rehearsal, BaseException | None]:
    """Run two steps with the largest batches, an evaluation and a checkpoint of a plan.

    Args:
        plan: The plan.
        train: Carries out a plan in this process, with a time ledger.
        available: Bytes that the training may use in all; None for what the device has.

    Returns:
        The measurements, and the error that ended it early.
    """
    device = select_device(plan.device)
    whole = make_loader(plan, torch.device("cpu"))
    try:
        largest = find_largest(whole, plan.dataset, STEPS * plan.accumulate)
        batches = whole.num_batches
    finally:
        whole.close()
    measured = Measured(device)
    short = _shortened(plan, largest)
    short = replace(
        short,
        eval_fn=measured.evaluation(plan.eval_fn),
        callbacks=(_Beginning(measured), *short.callbacks),
    )
    error: BaseException | None = None
    try:
        train(short, measured.ledger)
    except Exception as problem:
        problem.add_note(f"rehearsal: this happened in {measured.doing}")
        error = problem
    finally:
        measured.close()
    result = Rehearsal(
        device=str(device),
        parameters=measured.parameters,
        batch_size=plan.batch_size,
        batches=batches,
        epochs=plan.num_epochs,
        largest=largest.how,
        before_bytes=measured.before,
        available_bytes=available_bytes(device) if available is None else available,
        failed_in=measured.doing if error is not None else "",
        error=f"{type(error).__name__}: {error}" if error is not None else "",
    )
    run_bytes = _size(plan.run_dir.path) if plan.run_dir is not None else None
    return replace(result, **measured.figures(result, plan.accumulate), run_bytes=run_bytes), error


def _shortened(plan: TrainingPlan, largest: Largest) -> TrainingPlan:
    """The plan of one epoch over the largest batches that reports to nobody."""
    micro = plan.distributed.micro_batch
    return replace(
        plan,
        dataset=largest.dataset,
        batch_size=largest.batch_size,
        loader_options={**plan.loader_options, **largest.loader_options},
        num_epochs=1,
        engine="eager" if plan.engine == "auto" or wanted() else plan.engine,
        most_steps=STEPS,
        checkpoint_every=1,
        checkpoint_steps=None,
        resume=None,
        monitor=Monitor(1, terminal=False),
        live=None,
        timeline=None,
        record_timeline=False,
        progress=False,
        cache=False,
        distributed=DdpRunConfig(micro_batch=micro if isinstance(micro, int) else None),
    )


@final
class _Beginning(Callback):
    """Tells when the first step comes next."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def on_train_start(self, run: TrainingRun) -> None:
        self._measured.begin(run.model)


@final
class Measured:
    """A time ledger whose laps also note the peak of the memory.

    Attributes:
        ledger: For the training.
        before: Bytes in use before the first step.
        doing: What the training does now, in words.
        parameters: Numbers in the parameters of the model.
    """

    def __init__(self, device: torch.device) -> None:
        self.ledger = TimeLedger()
        self.parameters = 0
        self.before = 0
        self.doing = "building the parts"
        self._laps: list[tuple[Account, float, int]] = []
        self._memory = PeakMemory(device)
        self._meter = GpuMeter(device) if wanted() else None
        self._metering = ExitStack()
        self._book = self.ledger.lap
        self._last = time.perf_counter()
        self.ledger.lap = self._lap

    def begin(self, model: nn.Module) -> None:
        """The parts are built; the first step comes next."""
        self.parameters = sum(one.numel() for one in model.parameters())
        self.before = self._memory.in_use()
        self._laps.clear()
        if self._meter is not None:
            self._meter.add_model(model)
            self._metering.enter_context(self._meter)

    def close(self) -> None:
        """The training is over, or has failed."""
        self._metering.close()

    def evaluation(self, eval_fn: EvalFn | None) -> EvalFn | None:
        """The evaluation, which says that it is at work."""
        if eval_fn is None:
            return None

        def evaluate(model: Any) -> Mapping[str, float | Tensor]:
            self.doing = "the evaluation"
            return eval_fn(model)

        return evaluate

    def _lap(self, account: Account) -> None:
        self._memory.wait()
        now = time.perf_counter()
        self._laps.append((account, now - self._last, self._memory.take()))
        self.doing = _AFTER.get(account, self.doing)
        if self._meter is not None:
            self._meter.counts_inputs = account is Account.DATA
            self._meter.optimizes = account is Account.BACKWARD
            if account is Account.OPTIMIZER:
                self._meter.step_ended()
        self._book(account)
        self._last = time.perf_counter()

    def figures(self, result: Rehearsal, accumulate: int) -> dict[str, Any]:
        """The fields of a result that come from the laps."""
        last = self._batches()[-accumulate:]
        phases = []
        for account in _SHOWN:
            laps = [lap for lap in self._laps if lap[0] is account]
            if not laps:
                continue
            recent = [lap for batch in last for lap in batch if lap[0] is account]
            chosen = recent if account in _STEP else laps
            phases.append(
                Phase(account.value, sum(lap[1] for lap in chosen), max(lap[2] for lap in laps))
            )
        peak = max((phase.peak_bytes for phase in phases), default=0)
        of_steps = max((lap[2] for lap in self._laps if lap[0] in _STEP), default=0)
        in_steps = [lap for batch in last for lap in batch if lap[0] in _STEP]
        seconds = sum(lap[1] for lap in in_steps) / accumulate if in_steps else None
        others = sum(one.seconds for one in phases if one.name in ("evaluation", "checkpoint"))
        epoch, samples = None, None
        if result.batches is not None and result.batch_size is not None:
            samples = result.batches * result.batch_size
        if seconds is not None and result.batches is not None:
            epoch = seconds * result.batches + others
        return {
            "phases": tuple(phases),
            "step_seconds": seconds,
            "epoch_seconds": epoch,
            "peak_bytes": peak,
            "largest_batch_size": _largest_size(result, of_steps),
            "gpu": self._meter.result(result.batch_size, samples) if self._meter else None,
        }

    def _batches(self) -> list[list[tuple[Account, float, int]]]:
        """The laps by batch: each group begins with the wait for its data."""
        groups: list[list[tuple[Account, float, int]]] = []
        for lap in self._laps:
            if lap[0] is Account.DATA:
                groups.append([])
            if groups:
                groups[-1].append(lap)
        return groups


def _largest_size(result: Rehearsal, peak: int) -> int | None:
    """Estimate the largest batch size: what a step adds grows with its samples."""
    needed = peak - result.before_bytes
    if result.batch_size is None or needed < _NOISE_BYTES:
        return None
    free = MARGIN * result.available_bytes - result.before_bytes
    fitting = max(0, int(result.batch_size * free / needed))
    return fitting if result.batches is None else min(fitting, result.batches * result.batch_size)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


SEARCH_SECONDS = 20.0
"""The search for the largest batches ends after this time."""

_TWO = 2


@final
@dataclass(frozen=True)
class Largest:
    """The largest batches.

    Attributes:
        dataset: Data whose batches they are.
        batch_size: Samples per batch of it; None if it makes its own batches.
        loader_options: Settings of its loader that replace those of the training.
        how: How they were found, for a reader.
    """

    dataset: object
    batch_size: int | None
    loader_options: Mapping[str, Any] = field(default_factory=dict)
    how: str = ""


def find_largest(loader: DataLoader | IterableLoader, dataset: object, count: int) -> Largest:
    """Return ``count`` batches that are as large as the two largest of the first epoch.

    Samples in tensors and arrays all have one size, so nothing is read for them. Other samples are
    read once, for at most :data:`SEARCH_SECONDS`.

    Args:
        loader: The loader of the training, on the CPU.
        dataset: Its data, as the user gave it.
        count: Number of batches wanted.
    """
    if not isinstance(loader, DataLoader):
        return Largest(dataset, loader.batch_size, how="the first batches of the data")
    source = as_batch_data_set(dataset, declared_names(dataset))
    numbers = range(loader.num_batches)
    if stays_in_memory(source):
        # Only the last batch may differ: it is smaller, or has one sample more.
        chosen = sorted(numbers, key=lambda one: -len(loader.rows(0, one)))[:_TWO]
        how = "all batches have samples of one size"
    else:
        chosen, seen = _by_bytes(loader)
        how = f"the largest of {seen} batches"
        if seen < len(numbers):
            how += f" that were read in {SEARCH_SECONDS:g} s; an epoch has {len(numbers)}"
    batches = [loader.rows(0, number) for number in chosen]
    rows = [batches[one % len(batches)] for one in range(count)]
    size = max(len(one) for one in rows)
    rows = [one if len(one) == size else rows[0] for one in rows]
    options: dict[str, Any] = {
        "shuffle": False, "sampler": None, "drop_last": False, "join_remainder": False
    }  # fmt: skip
    if loader.names is not None:
        options["names"] = loader.names
    return Largest(Rows(source, torch.cat(rows).tolist()), size, options, how)


def _by_bytes(loader: DataLoader) -> tuple[list[int], int]:
    """The numbers of the two batches with the most bytes, and how many batches were read."""
    end = time.monotonic() + SEARCH_SECONDS
    sizes: list[tuple[int, int]] = []
    for number, (_, batch) in enumerate(loader.deliver(0, 0, loader.num_batches)):
        sizes.append((_bytes(batch), -number))
        if time.monotonic() > end:
            break
    return [-number for _, number in heapq.nlargest(_TWO, sizes)], len(sizes)


def _bytes(batch: Batch) -> int:
    found: Iterable[Any] = batch
    return sum(one.nbytes for one in found if isinstance(one, Tensor))


@final
class Rows(BatchDataSet):
    """Some samples of a data set, in a given order.

    Args:
        source: The data set.
        rows: Numbers of its samples; one may occur several times.
    """

    def __init__(self, source: BatchDataSet, rows: Sequence[int]) -> None:
        self._source = source
        self._rows = rows
        self.names = declared_names(source)

    def __len__(self) -> int:
        return len(self._rows)

    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        """Return the samples at these places."""
        return self._source.get_batch([self._rows[one] for one in indices])
