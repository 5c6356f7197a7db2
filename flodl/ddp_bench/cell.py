"""One run of the benchmark: a model in a mode, with everything that decides how it goes."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from flodl.ddp_bench.controls import CONTROLS, STANDS_FOR
from flodl.ddp_bench.data import Source
from flodl.ddp_bench.models import TASKS, Task
from flodl.distributed.config import MODES as BUILDER_MODES
from flodl.distributed.config import DdpRunConfig, mode_of

SETUP_MODE = "sync"
TORCH_DDP = "torch-ddp"
TORCH_LOCAL = "torch-postlocalsgd"
MODES = ("solo-0", "solo-1", SETUP_MODE, *BUILDER_MODES, TORCH_DDP, TORCH_LOCAL)
"""Every mode that ``--mode all`` runs."""

_SOLO = re.compile(r"solo-([0-9]+)")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A model in a mode with its settings; travels to other processes.

    Attributes:
        model: Name of one of :data:`~flodl.ddp_bench.models.TASKS`.
        mode: One of :data:`MODES` or of :data:`CONTROLS`, or ``solo-N``.
        folder: Where its files go.
        epochs: Passes over the data.
        batches: Only so many batches per epoch; None: all.
        batch_size: Samples per batch of one rank.
        lr: Learning rate at the start, before it is scaled for several ranks.
        seed: Of weights, order and augmentation.
        source: Where the data comes from.
        data_dir: Folder of the real data sets.
        offline: Do not download.
        ranks: Processes of a mode that has several.
        ddp: Settings of the ranks; policy and backend follow from the mode.
        max_grad_norm: Clip gradients to this norm.
        checkpoint_every: Keep the model every so many epochs.
        keep_timelines: Keep the timeline of every rank beside the merged one.
        monitor: Port of the live page; None: no page.
        launch: Settings of the launcher that only need to be recorded.
    """

    model: str
    mode: str
    folder: str
    epochs: int
    lr: float
    ddp: DdpRunConfig = field(default_factory=DdpRunConfig)
    batches: int | None = None
    batch_size: int = 64
    lr_scale: float | None = None
    seed: int = 42
    source: Source = "real"
    data_dir: str = "data"
    offline: bool = False
    ranks: int = 2
    max_grad_norm: float | None = None
    checkpoint_every: int | None = None
    keep_timelines: bool = False
    monitor: int | None = None
    launch: tuple[tuple[str, str], ...] = ()

    @property
    def task(self) -> Task:
        """The model and what belongs to it."""
        return TASKS[self.model]

    @property
    def path(self) -> Path:
        """Where its files go."""
        return Path(self.folder)

    @property
    def data_path(self) -> Path:
        """Folder of the real data sets."""
        return Path(self.data_dir)

    @property
    def solo(self) -> int | None:
        """The device that trains alone; None where several ranks train."""
        found = _SOLO.fullmatch(self.mode)
        return int(found[1]) if found else None

    @property
    def world_size(self) -> int:
        """Processes that train it."""
        return 1 if self.solo is not None else self.ranks

    @property
    def rate_factor(self) -> float:
        """What the learning rate of this mode is multiplied by for its number of ranks.

        One for modes in which the ranks share the batches of one process.
        """
        if self.solo is not None or self.mode == SETUP_MODE:
            return 1.0
        return self.ddp.lr_scale([1] * self.ranks)

    def rank_settings(self) -> DdpRunConfig:
        """Return the settings of the ranks with policy and backend of the mode."""
        mode = STANDS_FOR if self.mode in CONTROLS else self.mode
        if mode not in BUILDER_MODES:
            return self.ddp.having(ranks=self.world_size)
        policy, backend = mode_of(mode)
        return self.ddp.having(policy=policy, backend=backend, ranks=self.ranks)

    def simulated(self, rank: int) -> tuple[float | None, float | None]:
        """Return the declared milliseconds per batch and the declared speed of a rank."""
        ms, speed = self.ddp.simulate_ms, self.ddp.simulate_speed
        return (
            ms[rank % len(ms)] if ms is not None else None,
            speed[rank % len(speed)] if speed is not None else None,
        )

    @property
    def simulates(self) -> bool:
        """Whether the pace of the ranks is declared."""
        return self.ddp.simulate_ms is not None or self.ddp.simulate_speed is not None

    def config(self) -> dict[str, Any]:
        """Return all settings as JSON values, as they are recorded."""
        ddp = asdict(self.rank_settings())
        ddp["outer_optimizer"] = None if self.ddp.outer_optimizer is None else "custom"
        return {
            "epochs": self.epochs,
            "batches": self.batches,
            "batch_size": self.batch_size,
            "lr": self.lr,
            "lr_scale": self.lr_scale,
            "rate_factor": self.rate_factor,
            "seed": self.seed,
            "data": self.source,
            "data_dir": self.data_dir,
            "ranks": self.ranks,
            "max_grad_norm": self.max_grad_norm,
            "checkpoint_every": self.checkpoint_every,
            "keep_timelines": self.keep_timelines,
            "monitor": self.monitor,
            **dict(self.launch),
            "ddp": {name: _json_value(value) for name, value in ddp.items()},
        }


def is_mode(word: str) -> bool:
    """Whether a word names a mode; there is a solo mode for every device."""
    return word in (*MODES, *CONTROLS) or _SOLO.fullmatch(word) is not None


def starting_rate(task: Task, epochs: int, lr: float | None, lr_scale: float | None) -> float:
    """Return the learning rate of a run.

    A longer training than the usual one starts with a rate that is lower in proportion, unless a
    rate or a scale was given.

    Args:
        task: The model.
        epochs: Passes over the data.
        lr: A rate that was given.
        lr_scale: A factor that was given.
    """
    rate = task.lr if lr is None else lr
    if lr_scale is not None:
        return rate * lr_scale
    if lr is None and epochs > task.epochs:
        return rate * task.epochs / epochs
    return rate


def _json_value(value: object) -> Any:
    return list(value) if isinstance(value, tuple) else value
