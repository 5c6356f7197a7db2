"""The settings of a training for its records and for monitoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flodl.data.loader import positive_integer
from flodl.monitor.mlflow import MlflowSink
from flodl.monitor.server import check_port
from flodl.monitor.tensorboard import TensorBoardSink
from flodl.monitor.wandb import WandbSink, run_identity
from flodl.train.observers.best_metric import Best
from flodl.train.observers.early_stop import EarlyStop, StopMode
from flodl.train.observers.live_settings import LiveSetting
from flodl.train.settings.setting_methods import Settings, callable_setting

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Self

    from flodl.monitor import Monitor
    from flodl.monitor.timeline import Timeline
    from flodl.monitor.wandb import Mode
    from flodl.train.callbacks import Callback
    from flodl.train.observers.live_settings import Value
    from flodl.train.plan import SinkFactory
    from flodl.train.run.run_directory import RunDirectory


class RecordSettings(Settings):
    """Callbacks, checkpoints, run directory, monitor and timeline."""

    def callbacks(self, *callbacks: Callback) -> Self:
        """Call the hooks of these callbacks; see :class:`~flodl.train.callbacks.Callback`.

        Several calls add up.
        """
        return self._set("callbacks", (*self._settings.get("callbacks", ()), *callbacks))

    def live_setting(self, name: str, default: Value, on_change: Callable[[Any], object]) -> Self:
        """Declare a setting that ``fdl runs tell RUN set NAME=VALUE`` can change during training.

        ``on_change(value)`` is called between two optimizer steps, on every rank after the same
        step, and before the first step of a resumed training if the value is not the default. A
        ``ValueError`` in it refuses the value, on all ranks alike; another error ends the training.

        Example::

            .live_setting("temperature", 1.0, on_change=sampler.set_temperature)

        Args:
            name: Its name: letters, digits and underscores.
            default: The value at the beginning: a number, a text, True or False.
            on_change: Takes the new value, which has the type of the default.

        Raises:
            ValueError: The name is taken or not allowed, or the default has another type.
        """
        declared = self._settings.get("live_settings", ())
        if any(one.name == name for one in declared):
            raise ValueError(f"live_setting({name!r}): it is declared already")
        return self._set("live_settings", (*declared, LiveSetting(name, default, on_change)))

    def early_stop(
        self,
        metric: str = "loss",
        *,
        window: int = 5,
        tolerance: float = 1e-3,
        mode: StopMode = "stalled",
        patience: int = 1,
        higher_is_better: bool = False,
    ) -> Self:
        """End the training when the trend of a metric has settled.

        See :class:`~flodl.train.observers.early_stop.EarlyStop`.
        """
        return self.callbacks(
            EarlyStop(
                metric,
                window=window,
                tolerance=tolerance,
                mode=mode,
                patience=patience,
                higher_is_better=higher_is_better,
            )
        )

    def checkpoint_every(self, epochs: int) -> Self:
        """Write a checkpoint every ``epochs`` epochs; default: every epoch."""
        return self._set("checkpoint_every", positive_integer("checkpoint_every", epochs))

    def checkpoint_steps(self, steps: int) -> Self:
        """Also write a checkpoint every ``steps`` optimizer steps, even inside an epoch."""
        return self._set("checkpoint_steps", positive_integer("checkpoint_steps", steps))

    def keep_best(self, metric: str = "loss", *, higher_is_better: bool = False) -> Self:
        """Keep the model of the best epoch as ``best.fdl`` of :meth:`run_dir`.

        With :meth:`ema` it holds the averaged weights, which were evaluated.

        Args:
            metric: ``"loss"`` for the mean loss of the epoch, else the name of a scalar, such as
                one that ``eval_fn`` returns.
            higher_is_better: True if larger values are better, as with accuracy.
        """
        return self._set("best", Best(metric, higher_is_better))

    def resume(self, source: str | os.PathLike[str] | None) -> Self:
        """Continue a training exactly where a checkpoint was written; None starts a new one.

        Args:
            source: The directory of a run, its ``last.fdl``, or ``"last"``. ``"last"`` is the
                newest incomplete run beside the run directory.
        """
        return self._set("resume", source)

    def checkpoint_fn(self, callback: Callable[[int, Any], object]) -> Self:
        """Call ``callback(version, model)`` when a checkpoint is due; version = epoch + 1.

        An error in it is only reported.
        """
        return self._set("checkpoint_fn", callable_setting("checkpoint_fn", callback))

    def monitor(self, monitor: Monitor) -> Self:
        """Log every epoch to this monitor, and finish it with the training."""
        return self._set("monitor", monitor)

    def run_dir(self, run: RunDirectory) -> Self:
        """Write checkpoints, metrics, log and report into this run directory.

        Without your own monitor, flodl makes one, which also prints the epochs on the terminal.
        """
        return self._set("run_dir", run)

    def trace(self, on: bool = True) -> Self:
        """Record in :meth:`run_dir` what every step does, to compare runs; default: on.

        ``steps.trace`` holds the samples and the loss of every step, and digests of weights and
        batches at some steps. It does not change the training.
        """
        return self._set("trace", bool(on))

    def live(self, port: int = 0, host: str = "127.0.0.1", *, buttons: bool = False) -> Self:
        """Serve the live page during training, and print its address; port 0 picks a free port.

        It never stops a training: if the port is in use, it prints a warning and takes another
        port.

        Args:
            port: Port to listen on.
            host: Address to listen on.
            buttons: Show buttons that do what ``fdl runs tell`` does. The address then has a
                token: everybody who knows the whole address can act on the training.

        Raises:
            StateError: There is no such port.
        """
        return self._set("live", (check_port(port), host))._set("live_buttons", bool(buttons))

    def tensorboard(self, folder: str | os.PathLike[str] | None = None) -> Self:
        """Write metrics, curves and media for TensorBoard; needs the package ``tensorboard``.

        Args:
            folder: Folder for the event files of this run only; None for ``tensorboard/`` in the
                run directory, or in the working directory without one.
        """
        return self._sink(
            lambda run: TensorBoardSink(
                folder or (run.path / "tensorboard" if run is not None else "tensorboard")
            )
        )

    def mlflow(
        self, store: str | os.PathLike[str] | None = None, *, experiment: str = "flodl"
    ) -> Self:
        """Log metrics, configuration and media to MLflow; needs the package ``mlflow``.

        Args:
            store: Tracking URI or folder; None for ``MLFLOW_TRACKING_URI`` or MLflow's default.
            experiment: The experiment for the run.
        """
        return self._sink(lambda _: MlflowSink(store, experiment=experiment))

    def wandb(
        self,
        project: str = "flodl",
        *,
        run_id: str | None = None,
        entity: str | None = None,
        mode: Mode | None = None,
    ) -> Self:
        """Log metrics, configuration and media to Weights & Biases; needs the package ``wandb``.

        Local files are in ``wandb/`` in the run directory, or in the working directory without one.

        Args:
            project: The project of the run.
            run_id: Identifies the run in its project; a run of this id is continued. None makes one
                from the run directory, so ranks that are started again continue their run.
            entity: User or team.
            mode: ``online``, ``offline`` or ``disabled``; None for ``WANDB_MODE``, else online.
        """
        return self._sink(
            lambda run: WandbSink(
                project,
                folder=None if run is None else run.path,
                run_id=run_id or (None if run is None else run_identity(run.path)),
                entity=entity,
                mode=mode,
            )
        )

    def histograms(self, *, every: int = 100) -> Self:
        """Record histograms of all trainable weights and of their gradients; off by default.

        They are recorded at the first step, and at every ``every``-th: the weights that the step
        began with, and its gradients before they are clipped. With several ranks, rank 0 records
        its own weights. A step replayed as a CUDA graph has no gradients to read.

        Args:
            every: Optimizer steps between two records.
        """
        return self._set("histograms", positive_integer("histograms(every)", every))

    def _sink(self, make: SinkFactory) -> Self:
        return self._set("sinks", (*self._settings.get("sinks", ()), make))

    def timeline(self, timeline: Timeline | bool) -> Self:
        """Mark epochs in this timeline, and with several ranks every exchange.

        True makes a timeline of each rank for this training, samples its machine, and writes the
        timeline of all ranks into the run directory.
        """
        if isinstance(timeline, bool):
            return self._set("record_timeline", timeline)
        return self._set("timeline", timeline)

    def progress(self, on: bool | None) -> Self:
        """Show the progress of an epoch: a bar on a terminal, or a line every 30 s in a pipe.

        Before the first step, the terminal shows what the training does: reading data, compiling.

        Args:
            on: None shows it on a terminal, and in a pipe if a monitor prints the epochs there.
                Nothing is shown if ``FLODL_VERBOSITY`` is quiet.
        """
        return self._set("progress", on)
