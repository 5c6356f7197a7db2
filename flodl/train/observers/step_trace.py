"""What every step of a training did, so that two runs can be compared step by step.

Nothing here runs in every step of a training on one device. Losses arrive from the log of the epoch
in blocks, samples follow from the order of the epoch, and digests are taken at a few steps.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, final

import torch

from fdl.base.run_record import RECORD
from fdl.base.step_trace import TRACE, UNNUMBERED, Batches, TraceFile
from flodl import log
from flodl.data import DataLoader
from flodl.data.structure import tensors_of
from flodl.openmp import use_one_thread
from flodl.train.observers.digests import (
    DigestTimes,
    HostCopies,
    SampleDigests,
    combined,
    named_weights,
    order_digest,
    row_digests,
)
from flodl.train.parts import order_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from flodl.data import IterableLoader
    from flodl.ranks.group import Group
    from flodl.train.epoch_metrics import EpochLog
    from flodl.train.settings import TrainingPlan
    from flodl.train.step.step_values import LossLog, StepValues

P = ParamSpec("P")
_COPY_BYTES_PER_SECOND = 8e9
"""Assumed for copies from a GPU, whose time the host does not see."""
_WEIGHTS, _BATCH = 0, 1
_RANDOM, _SEQUENTIAL, _LISTED, _REPEATED = 0, 1, 2, 3


def _guarded(
    method: Callable[Concatenate[StepTrace, P], None],
) -> Callable[Concatenate[StepTrace, P], None]:
    """Let a failure end the trace and not the training; after one, nothing happens."""

    @wraps(method)
    def guarded(self: StepTrace, /, *arguments: P.args, **named: P.kwargs) -> None:
        if self._file is None:
            return
        try:
            method(self, *arguments, **named)
        except Exception as failure:
            _warn(failure)
            self._leave()

    return guarded


@final
class StepTrace:
    """Writes ``steps.trace`` of a run directory.

    A failure to write ends the trace with a warning, and the training continues.

    Args:
        file: The file.
        after: Steps that are complete.
        form: Where the orders of epochs come from, as the format numbers it.
        clips: Whether every step has a gradient norm.
        samples: The data, if it is in memory.

    Attributes:
        next_step: Number of complete steps from which on :meth:`look` is due.
        steps: Number of complete steps, if :meth:`trained` counts them.
    """

    next_step: float

    def __init__(
        self,
        file: TraceFile,
        after: int,
        form: int,
        facts: dict[str, object],
        *,
        clips: bool = False,
        samples: Sequence[Tensor] = (),
    ) -> None:
        self._file: TraceFile | None = file
        self._facts = facts
        self._form = form
        self._clips = clips
        self._times = DigestTimes(after)
        self.next_step = after
        self.steps = self._norms_told = after
        self._losses_told = self._batches = self._epoch_began = 0
        self._stretch: Batches | None = None
        self._epoch = -1
        self._orders: set[bytes] = set()
        self._values: StepValues | None = None
        self._named = False
        self._samples = SampleDigests(samples)
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    @classmethod
    def begin(
        cls,
        plan: TrainingPlan,
        loader: DataLoader | IterableLoader,
        group: Group,
        *,
        after: int,
        source: Path | None,
    ) -> StepTrace | None:
        """Begin the trace of a training; None if there is no run directory that this rank writes.

        Args:
            plan: The plan of the training.
            loader: The data.
            group: The ranks.
            after: Steps that are complete.
            source: The checkpoint that the training continues.
        """
        run = plan.run_dir
        if run is None or not run.writes or not plan.trace:
            return None
        # A scaler leaves steps out, so its norms do not belong to the steps of a trace.
        clips = plan.max_grad_norm is not None and plan.scaler is None
        facts: dict[str, object] = {
            "after": after,
            "continues": _continued(source, run.path),
            "rank": group.rank,
            "world_size": group.world_size,
            "policy": str(plan.distributed.policy) if group.world_size > 1 else None,
            "accumulate": plan.accumulate,
            "epochs": plan.num_epochs,
            "data": _data_facts(plan, loader),
            "device": str(loader.device),
            "engine": plan.engine,
            "torch": str(torch.__version__),
            "clips": clips,
        }
        try:
            file = TraceFile(run.path / TRACE)
            file.session(facts)
        except OSError as failure:
            _warn(failure)
            return None
        return cls(
            file,
            after,
            _form(loader),
            facts,
            clips=clips,
            samples=loader.resident if isinstance(loader, DataLoader) else (),
        )

    # --- Samples -------------------------------------------------------------------------------

    @_guarded
    def begin_epoch(
        self, epoch: int, order: Tensor | None, *, size: int, first: int, step: int, parts: int
    ) -> None:
        """Begin an epoch of one process, which trains its batches in order.

        Args:
            epoch: Counted from 0.
            order: Sample numbers of the whole epoch; None if samples have no numbers.
            size: Samples per batch; 0 if unknown.
            first: Number of the first batch in the epoch.
            step: Steps that are complete.
            parts: Batches per step.
        """
        if order is not None:
            self._tell_order(epoch, order)
        start, stride = (first * size, size) if order is not None else (first, 1)
        self._epoch_began = self._losses_told
        batches = Batches(self._losses_told, epoch, step + 1, start, size, stride, parts=parts)
        self._out.batches(batches._replace(flags=0 if order is not None else UNNUMBERED))
        self._times.run(step)

    @_guarded
    def left_out(
        self, epoch: int, *, size: int, first: int, step: int, parts: int, trained: int
    ) -> None:
        """Continue an epoch of one process behind batches that are left out.

        Args:
            epoch: Counted from 0.
            size: Samples per batch.
            first: Number of the next batch in the epoch.
            step: Steps that are complete.
            parts: Batches per step.
            trained: Batches trained since :meth:`begin_epoch`.
        """
        number = self._epoch_began + trained
        self._out.batches(Batches(number, epoch, step + 1, first * size, size, size, parts=parts))

    @_guarded
    def rewind(self, step: int) -> None:
        """Begin again after ``step`` steps; the steps after them are replaced.

        Call it when no loss is left to read.
        """
        self._tell_end("")
        self._out.session({**self._facts, "after": step})
        self._times = DigestTimes(step)
        self.steps = self._norms_told = self.next_step = step
        self._losses_told = self._batches = 0
        self._epoch, self._named = -1, False
        self._orders.clear()

    def resume_clock(self, step: int) -> None:
        """Count the time from now on to the steps after ``step`` again."""
        self._times.run(step)

    def end_epoch(self, step: int) -> None:
        """End the steps of an epoch: what follows does not count as their time.

        Args:
            step: Steps that are complete.
        """
        self._times.pause(step)

    @_guarded
    def trained(
        self,
        epoch: int,
        start: int,
        size: int,
        *,
        parts: int,
        closes: bool,
        order: Callable[[int], Tensor],
    ) -> None:
        """Record a batch of one of several ranks, after its step.

        Args:
            epoch: Counted from 0.
            start: Place of its first sample in the order of the epoch.
            size: Number of samples.
            parts: Batches of its step.
            closes: Whether it is the last batch of its step.
            order: Returns the order of an epoch.
        """
        if epoch > self._epoch:
            self._tell_order(epoch, order(epoch))
            if self._epoch < 0:
                self._times.run(self.steps)
            self._epoch = epoch
        one = Batches(self._batches, epoch, self.steps + 1, start, size, size, many=1, parts=parts)
        joined = self._stretch.joined(one) if self._stretch else None
        if joined is None:
            self._end_stretch()
        self._stretch = joined or one
        self._batches += 1
        if closes:
            self.steps += 1

    # --- Values --------------------------------------------------------------------------------

    @_guarded
    def take_losses(self, values: Sequence[float]) -> None:
        """Record the losses of the next batches, in blocks."""
        self._end_stretch()
        self._out.losses(self._losses_told, values)
        self._losses_told += len(values)

    def drain(self, losses: LossLog) -> None:
        """Take the losses that are not read yet, because the training ends with an error."""
        if self._file is not None:
            with suppress(Exception):  # the error that ends the training is more important
                losses.check()
            with suppress(Exception):
                losses.take()

    def end(self, log: EpochLog | None) -> None:
        """Write what is left, of the current epoch, too, and close the file."""
        if log is not None:
            self.drain(log.losses)
        self.close()

    def take_norms_of(self, values: StepValues | None) -> None:
        """Record the gradient norms of single steps, if every step has one."""
        if self._clips and values is not None:
            self._values = values
            values.on_norms = self._tell_norms

    # --- Digests -------------------------------------------------------------------------------

    @_guarded
    def look(self, model: nn.Module, batch: object, step: int) -> None:
        """Take digests between two steps, if they are due.

        Args:
            model: After ``step`` steps.
            batch: The first batch of the next step.
            step: Steps that are complete.
        """
        times, began = self._times, time.perf_counter()
        if times.is_due(step):
            copied = 0
            if self._pending is None or self._pending.done():
                copied = self._tell_digests(model, batch, step)
                self._tell_samples(time.perf_counter() - began)
            times.taken(step, time.perf_counter() - began + copied / _COPY_BYTES_PER_SECOND)
        self.next_step = times.next_step

    @_guarded
    def finish(self, model: nn.Module, step: int) -> None:
        """Take the last digest of the weights, and end the session.

        Args:
            model: The trained model.
            step: Steps that are complete.
        """
        self._tell_digests(model, None, step)
        self.close("complete")

    @_guarded
    def close(self, state: str = "") -> None:
        """Write what is left, and close the file; a second call does nothing.

        Args:
            state: How the training ended; empty if it did not end.
        """
        self._tell_end(state)
        self._leave()

    # --- Records -------------------------------------------------------------------------------

    @property
    def _out(self) -> TraceFile:
        """The file, where one is known to be there."""
        assert self._file is not None  # noqa: S101 - a guarded method has seen it
        return self._file

    def _tell_order(self, epoch: int, order: Tensor) -> None:
        digest, form = order_digest(order), self._form
        if form == _LISTED and digest in self._orders:
            form = _REPEATED
        self._orders.add(digest)
        self._out.order(epoch, digest, form)
        if form == _LISTED:
            self._out.listed(epoch, order)

    @_guarded
    def _tell_norms(self, norms: Sequence[float]) -> None:
        self._out.norms(self._norms_told + 1, norms)
        self._norms_told += len(norms)

    def _end_stretch(self) -> None:
        known, self._stretch = self._stretch, None
        if known is not None:
            self._out.batches(known)

    def _tell_digests(self, model: nn.Module, batch: object | None, step: int) -> int:
        """Take digests of the weights and of a batch; return the bytes copied from a GPU."""
        named, first = named_weights(model), not self._named
        if first:
            self._out.names([name for name, _ in named])
            self._named = True
        weights = HostCopies([tensor for _, tensor in named])
        tensors = None if batch is None else [one.detach() for one in tensors_of(batch)]
        content = HostCopies(tensors) if tensors is not None else None
        if not weights.copied:
            self._hash(weights, content, step, first=first)
            return 0
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                1, thread_name_prefix="flodl-trace", initializer=use_one_thread
            )
        self._pending = self._pool.submit(self._hash, weights, content, step, first=first)
        return weights.copied

    def _hash(
        self, weights: HostCopies, content: HostCopies | None, step: int, *, first: bool
    ) -> None:
        """Write the digests; on a thread if they have to wait for a device."""
        hashes = weights.hashes()
        if self._file is not None:
            self._file.digest(_WEIGHTS, step, combined(hashes), hashes if first else ())
            if content is not None:
                rows = row_digests(content.tensors())
                single = [rows[at : at + 8] for at in range(0, len(rows), 8)]
                self._file.digest(_BATCH, step + 1, combined(content.hashes()), single)

    def _tell_samples(self, seconds: float) -> None:
        first, digests = self._samples.take(seconds)
        if digests:
            self._out.samples(first, digests)

    def _tell_end(self, state: str) -> None:
        if self._pending is not None:
            self._pending.result()
        self._end_stretch()
        if self._values is not None:  # those that the page did not take, because of an error
            self._values.take_norms(wait=True)
        if state and self._file is not None:  # telling the norms may have failed
            self._file.end({"state": state})

    def _leave(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        file, self._file = self._file, None
        self.next_step = math.inf
        if file is not None:
            file.close()


def _form(loader: DataLoader | IterableLoader) -> int:
    kind = loader.order_kind if isinstance(loader, DataLoader) else ""
    return {"random": _RANDOM, "sequential": _SEQUENTIAL}.get(kind, _LISTED)


def _data_facts(plan: TrainingPlan, loader: DataLoader | IterableLoader) -> dict[str, object]:
    if not isinstance(loader, DataLoader):
        return {"sampler": "iterable", "batch_size": loader.batch_size}
    return order_facts(plan, loader)


def _continued(source: Path | None, folder: Path) -> dict[str, str] | None:
    """The run that a training continues; None for a new one, or one in its own folder."""
    if source is None or source.parent.absolute() == folder.absolute():
        return None
    run = source.parent.name if (source.parent / RECORD).is_file() else ""
    return {"run": run, "checkpoint": str(source)}


def _warn(failure: Exception) -> None:
    log.warning(f"{TRACE} ends here: {type(failure).__name__}: {failure}; the training continues")
