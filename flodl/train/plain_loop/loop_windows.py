"""Windows in the user's own loop: several batches per rank and step, by measured speed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from flodl.errors import PlanMismatchError, StateError
from flodl.ranks.planning.elche import (
    Counts,
    ElCheConfig,
    ElCheState,
    RankReport,
    elche_step,
    initial_state,
    split,
)

if TYPE_CHECKING:
    from flodl.data import Batch, DataLoader
    from flodl.ranks.clocks import Stopwatch
    from flodl.ranks.group import Group


@final
@dataclass(slots=True)
class Window:
    """The batches that this rank trains between two steps.

    Attributes:
        epoch: Number of the epoch, counted from 0.
        counts: Batches of each rank.
        start: First batch of this rank, in the order of the epoch.
        samples: Samples that this rank has trained; 0 if it had no batch, because fewer batches
            than ranks were left.
        loss: Mean loss of the samples, 0-dimensional, on the device; None without samples.
    """

    epoch: int
    counts: Counts
    start: int
    samples: int = 0
    loss: Tensor | None = None
    _weight: float = 0.0
    _wall_ms: float = 0.0
    _measured: int = 0

    def average_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Divide the summed gradients, so that they are the mean over the samples."""
        grads = [p.grad for p in parameters if p.grad is not None]
        if grads and self._weight != 1.0:
            torch._foreach_div_(grads, self._weight)


@final
class LoopWindows:
    """Splits epochs into windows and trains this rank's part of each.

    Args:
        group: The ranks.
        config: How windows adapt; None: one batch per rank.
        speeds: Relative speed of each rank, if known.
        watch: Measures the time in which this rank computes.
    """

    def __init__(
        self,
        group: Group,
        config: ElCheConfig | None,
        speeds: tuple[float, ...] | None,
        watch: Stopwatch,
    ) -> None:
        self._group, self._config, self._watch = group, config, watch
        self._elche: ElCheState | None = None if config is None else initial_state(config, speeds)
        self._warm_up = speeds is None
        self._opened = 0
        self.open: Window | None = None
        """The trained window that waits for its step."""

    @property
    def anchor(self) -> int:
        """Batches of the slowest rank in a window."""
        return 1 if self._elche is None else self._elche.anchor

    def epoch(
        self, epoch: int, loader: DataLoader, loss: Callable[[Batch], Tensor]
    ) -> Iterator[Window]:
        """Train an epoch window by window; yield each window before its step.

        Raises:
            StateError: There was no step after the previous window.
        """
        cursor = 0
        while cursor < loader.num_batches:
            if self.open is not None:
                raise StateError(
                    "the window before still waits: call step() after each window, it brings the "
                    "gradients of the ranks together"
                )
            counts = self._counts(loader.num_batches - cursor)
            window = Window(epoch, counts, cursor + sum(counts[: self._group.rank]))
            self._train(window, loader, loss)
            cursor += sum(counts)
            self._opened += 1
            self.open = window
            yield window

    def close(self, sync_ms: float) -> tuple[int, int]:
        """Close the window with the measurements of all ranks; collective.

        Call it after the gradients were exchanged.

        Args:
            sync_ms: Milliseconds of the exchange on this rank.

        Returns:
            The anchor before and after.

        Raises:
            PlanMismatchError: The ranks did not plan the same window.
        """
        window, self.open = self.open, None
        before = self.anchor
        if window is None or self._config is None or self._elche is None:
            return before, before
        plan = f"{self._opened} {window.epoch} {window.counts}".encode()
        rows = self._group.gather(
            [window._wall_ms, window._measured, sync_ms, float(zlib.crc32(plan))]
        )
        wrong = [rank for rank, row in enumerate(rows) if row[3] != rows[0][3]]
        if wrong:
            raise PlanMismatchError(
                f"rank {wrong[0]} planned another window {self._opened - 1} than rank 0: every "
                "rank has to run the same epochs over the same data with the same settings"
            )
        reports = [RankReport(row[0], int(row[1]), row[2]) for row in rows]
        self._elche = elche_step(self._elche, reports, self._config)
        return before, self.anchor

    def _counts(self, left: int) -> Counts:
        if self._elche is None:
            return split(min(left, self._group.world_size), (1.0,) * self._group.world_size)
        counts = self._elche.counts
        return counts if sum(counts) <= left else split(left, self._elche.ms)

    def _train(
        self, window: Window, loader: DataLoader, loss_of: Callable[[Batch], Tensor]
    ) -> None:
        count = window.counts[self._group.rank]
        # The very first batch is slow because of one-time work, so it is not measured.
        untimed = 1 if self._warm_up and self._opened == 0 and count > 1 else 0
        losses: list[Tensor] = []
        first = 0
        batches = loader.deliver(window.epoch, window.start, window.start + count)
        for number, (_, batch) in enumerate(batches):
            self._watch.start()
            samples = batch.batch_size
            first = first or samples
            factor = samples / first
            loss = loss_of(batch)
            # With a single batch, the result equals that of a plain loop bit by bit.
            (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach() * factor)
            window.samples += samples
            window._weight += factor
            self._watch.stop()
            if number < untimed:
                self._watch.take(1, wait=True)
        if losses:
            window._measured = count - untimed
            window._wall_ms = self._watch.take(window._measured, wait=True)
            window.loss = torch.stack(losses).sum() / window._weight
