"""One run of the benchmark: a model in a mode, with all its settings."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from flodl.ddp_bench.controls import CONTROLS, STANDS_FOR
from flodl.ddp_bench.data import Source
from flodl.ddp_bench.models import TASKS, Task
from flodl.ranks.settings import MODES as BUILDER_MODES, DdpRunConfig, mode_of

SETUP_MODE = "sync"
TORCH_DDP = "torch-ddp"
TORCH_LOCAL = "torch-postlocalsgd"
MODES = ("solo-0", "solo-1", SETUP_MODE, *BUILDER_MODES, TORCH_DDP, TORCH_LOCAL)
"""Every mode that ``--mode all`` runs."""

_RECORDED = (
    *("epochs", "batches", "batch_size", "lr", "lr_scale", "seed", "ranks", "max_grad_norm"),
    *("checkpoint_every", "keep_timelines", "monitor"),
)
"""Settings of a run that its record has as they are."""

_SOLO = re.compile(r"solo-([0-9]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonSettings:
    """The settings that all runs of a request have in common, apart from the seed.

    Attributes:
        source: Source of the data.
        data_dir: Folder of the real data sets.
        offline: Whether to download nothing.
        batches: Number of batches to use per epoch; None: all.
        batch_size: Samples per batch of one rank.
        lr_scale: Factor of the learning rate from the user; None: the default.
        seed: Seed of weights, order and augmentation; in a request that of the first run.
        ddp: Settings of the ranks; policy and backend follow from the mode.
        max_grad_norm: Clip gradients to this norm.
        checkpoint_every: Save the model after every this many epochs.
        keep_timelines: Whether to keep the timeline of every rank beside the merged one.
        monitor: Port of the live page; None: no page.
        launch: Settings of the launcher, which are only recorded.
    """

    source: Source = "real"
    data_dir: Path = Path("data")
    offline: bool = False
    batches: int | None = None
    batch_size: int = 64
    lr_scale: float | None = None
    seed: int = 42
    ddp: DdpRunConfig = field(default_factory=DdpRunConfig)
    max_grad_norm: float | None = None
    checkpoint_every: int | None = None
    keep_timelines: bool = False
    monitor: int | None = None
    launch: tuple[tuple[str, str], ...] = ()


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Cell(CommonSettings):
    """A model in a mode with its settings; it can be sent to other processes.

    Attributes:
        model: Name of one of :data:`~flodl.ddp_bench.models.TASKS`.
        mode: One of :data:`MODES` or of :data:`CONTROLS`, or ``solo-N``.
        folder: Folder for the files of the run.
        epochs: Passes over the data.
        lr: Learning rate at the start, before it is scaled for several ranks.
        ranks: Number of processes in modes with several ranks.
    """

    model: str
    mode: str
    folder: Path
    epochs: int
    lr: float
    ranks: int = 2

    @property
    def task(self) -> Task:
        """The task: model, data, loss, optimizer and evaluation."""
        return TASKS[self.model]

    @property
    def solo(self) -> int | None:
        """Number of the device in a solo mode; None in other modes."""
        found = _SOLO.fullmatch(self.mode)
        return int(found[1]) if found else None

    @property
    def world_size(self) -> int:
        """Number of processes that train."""
        return 1 if self.solo is not None else self.ranks

    @property
    def rate_factor(self) -> float:
        """Factor of the learning rate for the number of ranks.

        It is 1 for solo modes and for the mode in which the ranks share each batch.
        """
        if self.solo is not None or self.mode == SETUP_MODE:
            return 1.0
        return self.ddp.lr_scale([1] * self.ranks)

    def rank_settings(self) -> DdpRunConfig:
        """Return the settings of the ranks, with the policy and the backend of the mode."""
        mode = STANDS_FOR if self.mode in CONTROLS else self.mode
        if mode not in BUILDER_MODES:
            return self.ddp.having(ranks=self.world_size)
        policy, backend = mode_of(mode)
        return self.ddp.having(policy=policy, backend=backend, ranks=self.ranks)

    @property
    def simulates(self) -> bool:
        """Whether the speeds of the ranks are simulated."""
        return self.ddp.simulate_ms is not None or self.ddp.simulate_speed is not None

    def config(self) -> dict[str, Any]:
        """Return all settings as JSON values for the record of the run."""
        ddp = asdict(self.rank_settings())
        ddp["outer_optimizer"] = None if self.ddp.outer_optimizer is None else "custom"
        own = {name: getattr(self, name) for name in _RECORDED}
        return {
            **own,
            "rate_factor": self.rate_factor,
            "data": self.source,
            "data_dir": str(self.data_dir),
            **dict(self.launch),
            "ddp": {name: _json_value(value) for name, value in ddp.items()},
        }


def is_mode(word: str) -> bool:
    """Whether a word is the name of a mode or a control; every device has a solo mode."""
    return word in (*MODES, *CONTROLS) or _SOLO.fullmatch(word) is not None


def starting_rate(task: Task, epochs: int, lr: float | None, lr_scale: float | None) -> float:
    """Return the learning rate of a run.

    If a training has more epochs than the task's default, its rate is lower in proportion, unless
    the user gave a rate or a factor.

    Args:
        task: The task of the run.
        epochs: Passes over the data.
        lr: Learning rate from the user, or None.
        lr_scale: Factor of the learning rate from the user, or None.
    """
    rate = task.lr if lr is None else lr
    if lr_scale is not None:
        return rate * lr_scale
    if lr is None and epochs > task.epochs:
        return rate * task.epochs / epochs
    return rate


def _json_value(value: object) -> Any:
    return list(value) if isinstance(value, tuple) else value
