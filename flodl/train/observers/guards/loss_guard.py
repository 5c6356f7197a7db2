"""The guard of a training: it judges losses, takes the training back, and finds the cause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor

from flodl.data.structure import tensors_of
from flodl.errors import DivergedError
from flodl.train.observers.checkpoints import non_finite_parameters
from flodl.train.observers.digests import DigestTimes
from flodl.train.observers.guards.guard import Setback, rewind_of
from flodl.train.observers.guards.left_out import LeftOut
from flodl.train.observers.guards.snapshots import SnapshotRing
from flodl.train.peak_memory import available_bytes
from flodl.train.run.part_states import modes, set_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from flodl.ranks.group import Group
    from flodl.train.callbacks import Rewind
    from flodl.train.observers.guards.guard import Guards
    from flodl.train.observers.guards.snapshots import Snapshot
    from flodl.train.parts import Assembly, CountedRate
    from flodl.train.run.loop_state import Position
    from flodl.train.run.resume import Start
    from flodl.train.settings import TrainingPlan
    from flodl.train.step.tuned import TunedEngine


IsLeft: TypeAlias = "Callable[[Any, int, int], bool]"

_EVERY = 100
"""Steps between two looks of several ranks, whose clocks differ, if flodl may choose."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of all ranks that were not judged before.

    Attributes:
        values: In the order of the batches.
        place_of: Returns epoch and batch of a place in ``values``; -1 for the last that was
            trained, also if its loss was judged before.
    """

    values: Sequence[float]
    place_of: Callable[[int], tuple[int, int]]


@final
class LossGuard(LeftOut):
    """Judges the losses of a training, and takes all its ranks back to the same step.

    Every rank keeps its own snapshots and computes the same decisions; all methods are collective.

    Args:
        plan: The plan of the training.
        group: The ranks.
        assembly: The parts of the training.
        rate: The learning rate.
        start: Where the training begins.
        place: Complete epochs, and batches of the next one that are done.
        batches_per_step: Batches of all ranks in one optimizer step.
        settings: The limits.
        engine: Has the steps of this process.
        steps: Returns the steps of a rank so far, the same number on all ranks.

    Attributes:
        next_step: Optimizer steps after which a snapshot is due.
    """

    next_step: float

    def __init__(
        self,
        plan: TrainingPlan,
        group: Group,
        assembly: Assembly,
        rate: CountedRate,
        start: Start,
        place: tuple[int, int],
        *,
        batches_per_step: int,
        settings: Guards,
        engine: TunedEngine,
        steps: Callable[[], int],
    ) -> None:
        super().__init__(
            plan, group, assembly, rate, start, place, batches_per_step=batches_per_step,
            settings=settings,
        )  # fmt: skip
        self._engine, self._steps = engine, steps
        self._gradients = plan.scaler is None
        self._every = settings.every
        if self._every is None and group.world_size > 1:
            self._every = _EVERY
        memory = settings.memory
        if memory is None and group.world_size > 1:
            # Ranks may share a host. All keep equally many, so that they decide alike.
            own = available_bytes(torch.device("cpu")) // 2 // group.world_size
            memory = int(min(row[0] for row in group.gather([float(own)])))
        self._ring = SnapshotRing(settings.snapshots, memory)
        self._times = DigestTimes(steps())
        self.next_step = steps()

    # --- Steps ---------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all snapshots: the training never goes back past this point."""
        self._ring.clear()

    @property
    def is_empty(self) -> bool:
        """Whether there is no snapshot to go back to."""
        return not len(self._ring)

    def run_clock(self) -> None:
        """Count the time from now on to the steps."""
        self._times.run(self._steps())

    def begin_again(self) -> None:
        """Begin to count the time of steps again, after the training went back."""
        self._times = DigestTimes(self._steps())
        self._plan(0.0)
        self.run_clock()

    def pause(self) -> None:
        """Do not count the time from now on to the steps."""
        self._times.pause(self._steps())

    def look(self, losses: Losses, *, certain: bool = False) -> None:
        """Judge the losses so far, between two steps.

        Args:
            losses: Since the last look.
            certain: Look at the parameters, too.

        Raises:
            Setback: A loss or a parameter is bad; on all ranks.
        """
        self._judge(losses)
        if certain and (broken := self._broken()):
            what = f"{', '.join(broken[:3])} hold values that are not finite"
            raise Setback(what, *losses.place_of(-1))

    def is_due(self) -> bool:
        """Whether a snapshot is due after the latest step; the same on all ranks."""
        step = self._steps()
        if step < self.next_step or self._every is not None:
            return step >= self.next_step
        due = self._times.is_due(step)
        self.next_step = self._times.next_step
        return due

    def keep(self, place: Position, counted: Any) -> None:
        """Take a snapshot of a state that was judged.

        Args:
            place: Complete epochs and batches of the next one.
            counted: Everything else that the training counts; :meth:`go_back` returns it.

        Raises:
            ValueError: The training cannot be kept in memory.
        """
        began, assembly, scaler = time.perf_counter(), self._assembly, self._engine.settings.scaler
        self._engine.present()
        extra = {
            "rule": self._guard.rule.state(),
            "rate": self._rate.state(),
            "asked": schedule.asked() if (schedule := assembly.torch_schedule) is not None else {},
            "modes": modes(assembly.model),
            "skipped": scaler.skipped if scaler is not None else 0,
            "cached": self._loader.cached_samples,
        }
        position = replace(place, global_step=self._engine.global_step)
        self._ring.take(assembly.parts(extra), position, counted)
        self._plan(time.perf_counter() - began)

    def _plan(self, seconds: float) -> None:
        """Plan the next snapshot after one that took so long."""
        step, every = self._steps(), self._every
        self._times.taken(step, seconds)
        self.next_step = self._times.next_step if every is None else (step // every + 1) * every

    def _judge(self, losses: Losses) -> None:
        place = self._guard.rule.first_bad(losses.values)
        if place is not None:
            raise Setback(self._guard.told(losses.values[place]), *losses.place_of(place))

    def _broken(self) -> list[str]:
        found = self._group.gather_objects(non_finite_parameters(self._assembly.model))
        return next((names for names in found if names), [])

    # --- Setbacks ------------------------------------------------------------------------------

    def cause(
        self, problem: DivergedError, losses: Losses, place: tuple[int, int], *, before: bool
    ) -> Setback:
        """Return why a step could not be taken.

        Args:
            problem: What the step raised; on all ranks.
            losses: Those that have been read since the last look.
            place: Epoch and first batch of the step.
            before: Whether the step raised it before it changed a parameter.
        """
        try:
            # A spike may have come first: the parameters that it left made this loss.
            self._judge(losses)
        except Setback as earlier:
            found = earlier
        else:
            found = Setback(problem.what, *place)
        if before and (found.epoch, found.batch) == place:
            found.broken = bool(self._broken())
        return found

    def go_back(self, setback: Setback, is_left: IsLeft) -> tuple[Rewind, Any] | None:
        """Restore an earlier state, and leave out the batches that caused a setback.

        Args:
            setback: What happened.
            is_left: ``(counted, epoch, batch)``: whether a batch was not trained in a snapshot.

        Returns:
            What happened, for callbacks, and what :meth:`keep` was given to count. None if there
            were too many attempts: nothing is restored.
        """
        step, oldest = self._engine.global_step, self._ring.oldest.kept
        decision = self._guard.decide(setback, lambda *place: is_left(oldest, *place))
        if decision is None:
            return None
        batches, epoch = decision.batches, decision.epoch
        snapshot = self._ring.newest(
            lambda counted: all(is_left(counted, epoch, batch) for batch in batches),
            self._assembly.model,
        )
        rate = float(self._assembly.optimizer.param_groups[0]["lr"])
        self._restore(snapshot)
        rewind = rewind_of(setback, decision, self._loader, step, self._engine.global_step)
        self._records.decided(setback, decision, rewind, rate=rate)
        return rewind, snapshot.kept

    def go_back_once_more(self, setback: Setback, is_left: IsLeft) -> tuple[Any, FirstNonFinite]:
        """Restore a state before a setback, and return a look at the modules on the way to it."""
        snapshot = self._ring.newest(
            lambda counted: is_left(counted, setback.epoch, setback.batch), self._assembly.model
        )
        self._restore(snapshot)
        return snapshot.kept, FirstNonFinite(self._assembly.model, gradients=self._gradients)

    def farewell(self, setback: Setback, step: int, found: str) -> DivergedError:
        """Return the error that ends the training.

        Args:
            setback: What happened too often.
            step: Optimizer steps when it happened.
            found: Where the first value was that is not finite; empty if none was found.
        """
        first = next(filter(None, self._group.gather_objects(found)), "")
        told = self._guard.farewell(setback, sentence(first))
        self._records.given_up(told, step)
        return DivergedError(told, epoch=setback.epoch, step=setback.batch)

    def _restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot; what was counted is the caller's."""
        assembly, extra, scaler = self._assembly, snapshot.extra, self._engine.settings.scaler
        snapshot.restore(assembly.parts({}))
        self._rate.restore(extra["rate"])
        if assembly.torch_schedule is not None:
            assembly.torch_schedule.restore_asked(extra["asked"])
        self._loader.drop_cached(int(extra["cached"]))
        set_modes(assembly.model, extra["modes"])
        if scaler is not None:
            scaler.skipped = int(extra["skipped"])
        self._engine.global_step = snapshot.position.global_step
        self._guard.rule.load(extra["rule"])


@final
class FirstNonFinite:
    """Looks at the outputs of all modules, and at the gradients of their inputs and parameters.

    A gradient is blamed on the module that made it: the one that used the tensor last.

    Args:
        model: The model whose steps are looked at.
        gradients: Whether to look at gradients. Not with a loss scaler, which expects some that are
            not finite.

    Attributes:
        found: What was found first, for people; empty if everything is finite.
    """

    def __init__(self, model: nn.Module, *, gradients: bool = True) -> None:
        self.found = ""
        self._model, self._gradients = model, gradients
        self._users: dict[int, str] = {}
        self._kept: list[Tensor] = []
        """The tensors of :attr:`_users`, so that their ids are not used again."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the steps inside the context."""
        handles: list[RemovableHandle] = []
        for path, module in self._model.named_modules():
            name = f"{path or 'the model'} ({type(module).__name__})"
            handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
            handles.append(module.register_forward_hook(self._after(name)))
        if self._gradients:
            for path, parameter in self._model.named_parameters():
                if parameter.requires_grad:
                    handle = parameter.register_hook(self._of_parameter(path))  # type: ignore[no-untyped-call]
                    handles.append(handle)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._users.clear()
            self._kept.clear()

    def _before(self, name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            for tensor in _tensors((args, kwargs)):
                self._used(tensor, f"the gradient of the input of module {name}")

        return hook

    def _after(self, name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            for tensor in _tensors(output):
                if not self.found and not _finite(tensor):
                    self.found = f"the output of module {name}"
                if id(tensor) not in self._users:
                    self._used(tensor, f"the gradient of the output of module {name}")

        return hook

    def _used(self, tensor: Tensor, what: str) -> None:
        if not self._gradients or not tensor.requires_grad or not torch.is_grad_enabled():
            return
        key = id(tensor)
        known = key in self._users
        self._users[key] = what
        if known or tensor.is_leaf:
            return
        self._kept.append(tensor)

        def hook(gradient: Tensor) -> None:
            if not self.found and not _finite(gradient):
                self.found = self._users[key]

        tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def _of_parameter(self, path: str) -> Any:
        holder, _, own = path.rpartition(".")
        module = dict(self._model.named_modules())[holder]
        name = f"{holder or 'the model'} ({type(module).__name__})"

        def hook(gradient: Tensor) -> None:
            if not self.found and not _finite(gradient):
                self.found = f"the gradient of {own} of module {name}"

        return hook


def sentence(found: str) -> str:
    """Return a sentence about what was found; nothing if it is empty."""
    if not found:
        return "The outputs and gradients of all modules were finite when it was trained again"
    return f"The first value that is not finite: {found}"


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tensors_of(values) if one.is_floating_point() or one.is_complex()]


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.detach().isfinite().all())
