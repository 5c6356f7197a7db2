"""What a training calls, keeps and shows: hooks, checkpoints, run directory, monitor."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, final

from flodl.monitor.server import check_port
from flodl.setting import Settings, UnfitError, Whole, is_function, setting, switch, whole
from flodl.train.observers.early_stop import Best
from flodl.train.run.run_records import checkpoint_in

if TYPE_CHECKING:
    from typing import TypeAlias

    from torch import Tensor

    from flodl.monitor import EpochMetrics, Monitor, Sink
    from flodl.monitor.timeline import Timeline
    from flodl.train.callbacks import Callback, Worker
    from flodl.train.observers.steering import LiveSetting
    from flodl.train.run.run_directory import RunDirectory

    SinkFactory: TypeAlias = Callable[[RunDirectory | None], Sink]


@final
@dataclass(frozen=True, slots=True)
class LivePage:
    """Where the live page of a training is.

    Raises:
        StateError: There is no such port.
    """

    port: int = 0
    """Port to listen on."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    _: KW_ONLY
    buttons: bool = False
    """Show buttons that do what ``fdl runs tell`` does.

    The address then has a token: everybody who knows the whole address can act on the training.
    """

    def __post_init__(self) -> None:
        check_port(self.port)


def _histograms(*, every: int = 100) -> int:
    return whole("histograms(every)", every)


def _is_run(value: Any) -> Any:
    if isinstance(value, str | os.PathLike):
        raise UnfitError(f"it must be a RunDirectory: RunDirectory.create({str(value)!r})")
    return value


@dataclass(frozen=True, kw_only=True)
class RecordSettings(Settings):
    """What a training calls, keeps and shows."""

    epoch_fn: Callable[[int, Worker], object] | None = setting(None, is_function, takes="callback")
    """Call ``callback(epoch, worker)`` before each epoch; an error in it ends the training."""
    metrics_fn: Callable[[EpochMetrics], object] | None = setting(
        None, is_function, takes="callback"
    )
    """Call ``callback(metrics)`` after each epoch; an error in it is only reported."""
    eval_fn: Callable[[Any], Mapping[str, float | Tensor]] | None = setting(
        None, is_function, takes="callback"
    )
    """Call ``callback(model)`` after each epoch, in eval mode and without gradients.

    The values it returns join the scalars of the epoch. An error in it ends the training, because a
    restart costs less than hours of training without these values.
    """
    callbacks: tuple[Callback, ...] = ()
    """Objects whose hooks are called."""
    states: Mapping[str, Any] = field(default_factory=dict)
    """Objects of the program whose state checkpoints keep, by name."""
    live_settings: tuple[LiveSetting, ...] = ()
    """Settings of the program that can change during training."""
    checkpoint_every: int = setting(1, Whole(), takes="epochs", key="checkpoint_every")
    """Epochs between two checkpoints."""
    checkpoint_steps: int | None = setting(None, Whole(), takes="steps")
    """Also write a checkpoint every ``steps`` optimizer steps, even inside an epoch."""
    best: Best | None = setting(None, made=Best, method="keep_best")
    """Keep the model of the best epoch as ``best.fdl`` of :meth:`run_dir`.

    With :meth:`ema` it holds the averaged weights, which were evaluated.
    """
    checkpoint_fn: Callable[[int, Any], object] | None = setting(
        None, is_function, takes="callback"
    )
    """Call ``callback(version, model)`` when a checkpoint is due; version = epoch + 1.

    An error in it is only reported.
    """
    resume: str | os.PathLike[str] | None = setting(None, takes="source")
    """Continue a training exactly where a checkpoint was written; None starts a new one.

    Args:
        source: The directory of a run, its ``last.fdl``, or ``"last"``. ``"last"`` is the newest
            incomplete run beside the run directory.
    """
    monitor: Monitor | None = setting(None, takes="monitor")
    """Log every epoch to this monitor, and finish it with the training."""
    live: LivePage | None = setting(None, made=LivePage)
    """Serve the live page during training, and print its address; port 0 picks a free port.

    It never stops a training: if the port is in use, it prints a warning and takes another port.

    Raises:
        StateError: There is no such port.
    """
    sinks: tuple[SinkFactory, ...] = ()
    """Further receivers of the records."""
    histograms: int | None = setting(None, made=_histograms)
    """Record histograms of all trainable weights and of their gradients; off by default.

    They are recorded at the first step, and at every ``every``-th: the weights that the step began
    with, and its gradients before they are clipped. With several ranks, rank 0 records its own
    weights. A step replayed as a CUDA graph has no gradients to read.

    Args:
        every: Optimizer steps between two records.
    """
    timeline: Timeline | None = None
    """Epochs are marked in it, and with several ranks every exchange."""
    record_timeline: bool = setting(False, key="timeline")
    """Record what each rank does and when. It is written into the run directory."""
    progress: bool | None = setting(None, takes="on")
    """Show the progress of an epoch: a bar on a terminal, or a line every 30 s in a pipe.

    Before the first step, the terminal shows what the training does: reading data, compiling.

    Args:
        on: None shows it on a terminal, and in a pipe if a monitor prints the epochs there. Nothing
            is shown if ``FLODL_VERBOSITY`` is quiet.
    """
    run_dir: RunDirectory | None = setting(None, _is_run, takes="run")
    """Write checkpoints, metrics, log and report into this run directory.

    Without your own monitor, flodl makes one, which also prints the epochs on the terminal.
    """
    trace: bool = switch(True)
    """Record in :meth:`run_dir` what every step does, to compare runs; default: on.

    ``steps.trace`` holds the samples and the loss of every step, and digests of weights and batches
    at some steps. It does not change the training.
    """
    most_steps: int | None = None
    """Optimizer steps of the whole training after which it stops; None for no limit."""


_KEPT = {"best": "keep_best(…)", "checkpoint_steps": "checkpoint_steps(…)"}


def check_files(settings: Mapping[str, Any]) -> None:
    """Check that the run directory and the checkpoint exist if the settings need them.

    Raises:
        ValueError: A setting needs a run directory and there is none.
        RunDirectoryError: There is no checkpoint to resume from.
    """
    if settings.get("run_dir") is None:
        wanted = [call for name, call in _KEPT.items() if settings.get(name) is not None]
        if "checkpoint_every" in settings and settings.get("checkpoint_fn") is None:
            wanted.append("checkpoint_every(…)")
        if wanted:
            raise ValueError(
                f".{wanted[0]} writes into a run directory and there is none: add "
                ".run_dir(RunDirectory.create('runs'))"
            )
    source = settings.get("resume")
    if source is not None and source != "last":
        checkpoint_in(source)
