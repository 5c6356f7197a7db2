"""The checkpoints that a training writes into its run directory, and the best model of a run."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch
from torch import nn

from fdl.base.files import replacing
from fdl.base.units import counted
from flodl import log
from flodl.checkpoint import (
    checkpoint_metadata,
    load_checkpoint_file,
    save_checkpoint_file,
)
from flodl.checkpoint.buffer_sizes import sized_as_stored
from flodl.checkpoint.extra_state import extra_modules, extra_states
from flodl.checkpoint.files import read_file_header
from flodl.checkpoint.forms import CASTABLE
from flodl.checkpoint.names import persistent_buffers, qualify
from flodl.checkpoint.sharded import agreed, everywhere, local_part, reshard, sharing_ranks
from flodl.errors import CheckpointError, DivergedError
from flodl.graph.graph import Graph
from flodl.train.run.run_directory import RunDirectory
from flodl.train.run.run_records import BEST, LAST
from flodl.train.run.training_state import TrainingState, label_and_hash
from flodl.worker import CpuWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from flodl.checkpoint.container import Header
    from flodl.monitor import EpochMetrics
    from flodl.train.run.loop_state import Position
    from flodl.train.run.part_states import Parts


@final
class _Background:
    """One file of the run directory that another thread writes.

    Training waits only while its state is copied in memory. One write is in progress at a time. A
    newer state replaces one that still waits.

    Attributes:
        written: The position of the state in the file.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], worker: CpuWorker) -> None:
        self.written: Position | None = None
        self._path = path
        self._config = config
        self._worker = worker
        self._lock = threading.Lock()
        self._waiting: TrainingState | None = None
        self._spare: TrainingState | None = None
        self._complaint = ""

    def save(self, capture: Callable[[TrainingState | None], TrainingState | None]) -> None:
        """Replace the file soon; if the disk refuses, report it and continue training.

        Args:
            capture: ``(reuse) -> state``; it may overwrite the memory of ``reuse``. None if another
                process writes.
        """
        state = capture(self._take_buffers())
        if state is None:
            return
        with self._lock:
            self._waiting = state
        self._worker.submit(self._write)

    def release(self) -> None:
        """Free the memory that was kept for the next state."""
        self._spare = None

    def complain(self, text: str) -> None:
        """Report a failure, unless it is the same as the last one."""
        if text != self._complaint:
            self._complaint = text
            log.warning(text)

    def _take_buffers(self) -> TrainingState | None:
        """Return a state whose memory is free: a replaced one, or one that is on the disk."""
        with self._lock:
            if self._waiting is None:
                self._waiting, self._spare = self._spare, None
            taken, self._waiting = self._waiting, None
            return taken

    def _write(self) -> None:
        with self._lock:
            state, self._waiting = self._waiting, None
        if state is None:  # replaced by a newer state, which a later task writes
            return
        try:
            state.write(self._path, config=self._config)
        except (CheckpointError, ValueError) as error:
            self.complain(f"{error}; training continues without it")
        else:
            self.written = state.position
            self._complaint = ""
        with self._lock:
            self._spare = state


@final
class CheckpointKeeper:
    """Keeps states of a training in a run directory, if there is one.

    The caller passes only states with finite losses and parameters, see
    :func:`non_finite_parameters`.

    Processes that train one sharded model each make one, and call it alike. They write to the run
    directory of the lowest rank. If that rank has none, nothing is written.
    """

    def __init__(self, model: nn.Module, run: RunDirectory | None) -> None:
        self._model = model
        self._parameters = list(model.parameters())
        self.sharing = sharing_ranks(self._parameters)
        """The processes that hold parts of the model, and take part in every save."""
        self.keeps = self.agreed(run is not None) if self.sharing else run is not None
        """Whether states are kept; the same in all processes that share the model."""
        self._run = run
        self._worker: CpuWorker | None = None
        self._last = self._best = None
        if run is not None:
            self._worker = worker = CpuWorker(one_thread=True)
            self._last = _Background(run.last_checkpoint, run.config, worker)
            self._best = _Background(run.best_checkpoint, run.config, worker)

    def agreed(self, value: Any) -> Any:
        """Return the JSON value of the lowest rank; collective if ranks share the model."""
        return agreed(value, self._parameters, "the decisions of a training")

    def save(self, parts: Parts, position: Position, metrics: Mapping[str, float]) -> None:
        """Replace the newest checkpoint soon.

        Args:
            parts: The training, between two steps.
            position: Its position.
            metrics: The metrics of the last epoch.

        Raises:
            StateError: After :meth:`finish`.
        """
        last = self._last
        if not self.keeps:
            return

        def capture(reuse: TrainingState | None) -> TrainingState | None:
            try:
                return TrainingState.capture(parts, position, metrics, reuse=reuse)
            except ValueError as problem:
                if last is not None:
                    last.complain(f"{problem}: checkpoints keep the model, but cannot be resumed")
                return TrainingState.capture_model(parts.model, position, metrics, reuse=reuse)

        if last is None:
            capture(None)
        else:
            last.save(capture)

    def save_best(self, position: Position, metrics: Mapping[str, float]) -> None:
        """Replace the best model by the current one soon.

        Raises:
            StateError: After :meth:`finish`.
        """

        def capture(reuse: TrainingState | None) -> TrainingState | None:
            return TrainingState.capture_model(self._model, position, metrics, reuse=reuse)

        if self._best is not None:
            self._best.save(capture)
        elif self.keeps:
            capture(None)

    def adopt_best(self, source: Path, epochs: int) -> None:
        """Copy the best model of the run that this run continues.

        Args:
            source: The checkpoint that this run continues from.
            epochs: Complete epochs in that checkpoint; the model of a later epoch is not copied.
        """
        if self._run is None:
            return
        earlier = source.with_name(self._run.best_checkpoint.name)
        try:
            if earlier.is_file() and int(checkpoint_metadata(earlier)["epoch"]) <= epochs:
                with replacing(self._run.best_checkpoint) as file:
                    file.write(earlier.read_bytes())
        except (OSError, ValueError, KeyError, CheckpointError) as problem:
            log.warning(f"cannot take over the best model so far, {earlier}: {problem}")

    def save_final(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Wait for the writes in progress, then write the trained model.

        Raises:
            CheckpointError: It cannot be written.
        """
        self.finish()
        model = self._model
        label, hash = label_and_hash(model)
        reshard(model)
        save_checkpoint_file(
            self._run.model_checkpoint if self._run is not None else Path("model.fdl"),
            model.named_parameters(remove_duplicate=False),
            persistent_buffers(model, tied=True),
            hash,
            label=label,
            config=self._run.config if self._run is not None else None,
            epoch=epoch,
            metrics=metrics,
            metadata={"step": "0"},
            extra_state=extra_states(model),
        )

    def finish(self) -> None:
        """Wait until everything is written; nothing can be saved after that."""
        if self._worker is not None:
            self._worker.finish()
        for file in (self._last, self._best):
            if file is not None:
                file.release()

    def to_resume(self, source: Path | None) -> Path | None:
        """Return the checkpoint to continue from; wait for the first one if it is written now.

        Args:
            source: The checkpoint that this training continued from.
        """
        if self._last is not None and self._last.written is None:
            self.finish()
        if self._run is None or self._last is None or self._last.written is None:
            return source
        return self._run.last_checkpoint

    def whereabouts(self) -> str:
        """Wait for the write in progress, and return where the last good state is.

        For the message of a run that ends early.
        """
        self.finish()
        if self._run is None or self._last is None or self._last.written is None:
            return "nothing was saved"
        epoch, step = self._last.written.epoch, self._last.written.step
        moment = counted(epoch, "complete epoch") + (
            f" and {counted(step, 'step')}" if step else ""
        )
        return f"the last good checkpoint is {self._run.last_checkpoint} (after {moment})"


@torch.no_grad()
def non_finite_parameters(model: nn.Module) -> list[str]:
    """Return the names of the parameters that hold a nan or an infinity; reads the device once.

    Processes that share a sharded model call this together, and get the same result.
    """
    named = {n: p for n, p in model.named_parameters() if p.dtype in CASTABLE}
    if not named:
        return []
    finite = torch.stack([numbers_in(p).isfinite().all() for p in named.values()])
    agreed_on = everywhere(finite, named.values()).tolist()
    return [name for name, good in zip(named, agreed_on, strict=True) if not good]


def numbers_in(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor in this process, in a type and layout that can be tested."""
    local = local_part(tensor)
    if local.layout is not torch.strided:
        local = local._values() if local.is_sparse else local.values()
    return local.float() if local.itemsize == 1 and local.is_floating_point() else local


def require_finite(model: nn.Module, when: str, *, epoch: int, step: int) -> None:
    """Check the parameters of a model, whatever the losses were.

    Raises:
        DivergedError: A parameter holds a nan or an infinity; the message says ``when``.
    """
    broken = non_finite_parameters(model)
    if broken:
        raise DivergedError(
            f"{', '.join(broken[:3])}{' and more' if broken[3:] else ''} hold values that are "
            f"not finite {when}",
            epoch=epoch,
            step=step,
        )


def last_values(history: Sequence[EpochMetrics]) -> dict[str, float]:
    """Return the metrics of the last epoch."""
    if not history:
        return {}
    last = history[-1]
    return {"loss": last.avg_loss, **last.scalars}


Model = TypeVar("Model", bound=nn.Module)


def load_best(run: str | os.PathLike[str] | RunDirectory, model: Model) -> Model:
    """Load the best model of a run, and put it into evaluation mode.

    The file is ``best.fdl``, which a Trainer writes if it was told to :meth:`keep_best`. Its values
    are copied into the model, which stays on its device.

    Args:
        run: The folder of a run, such as ``"runs/2026-11-28T10-00-00"``, or its object. Or another
            checkpoint, such as the ``model.fdl`` beside it.
        model: A model built as the training built it.

    Returns:
        The model.

    Raises:
        CheckpointError: The run has no best model, or the file does not fit the model. The model
            is unchanged.
        ArchitectureMismatch: The file was saved from a graph of another architecture.
        ShapeMismatch: Tensors of the same name differ in shape.
    """
    folder = run.path if isinstance(run, RunDirectory) else Path(run)
    best = folder if folder.is_file() else folder / BEST
    if not best.is_file():
        raise CheckpointError(_missing(folder))
    header = read_file_header(best)
    with sized_as_stored(model, header):
        _require_all(best, header, model)
        load_checkpoint_file(
            best,
            model.named_parameters(),
            persistent_buffers(model),
            model.structural_hash() if isinstance(model, Graph) else None,
            extra_modules=extra_modules(model),
        )
    return model.eval()


def _missing(folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no run in {folder}: `fdl runs` lists the folders of runs"
    others = [folder / name for name in ("model.fdl", LAST) if (folder / name).is_file()]
    if not others:
        return f"{folder} has no {BEST}: it is no run of a Trainer, or no epoch of it is complete"
    return (
        f"{folder} has no {BEST}, because its Trainer was not told to keep_best(...); its newest "
        f'weights are loaded by load_best("{others[0]}", model)'
    )


def _require_all(best: Path, header: Header, model: nn.Module) -> None:
    """Refuse a file without a tensor of the model, or with one that the model lacks.

    Raises:
        CheckpointError: They differ.
    """
    held = {entry.name for entry in header.model_entries}
    once = [*model.named_parameters(), *persistent_buffers(model)]
    own = {qualify(name) for name, _ in once}
    for told, names in (("lacks", own - held), ("has besides", held - own)):
        if names:
            raise CheckpointError(
                f"{best} does not fit the model: the file {told} {', '.join(sorted(names)[:3])}"
                f"{' and more' if len(names) > 3 else ''}; build the model as the training did"
            )
