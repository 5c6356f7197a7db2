"""How ranks share the work of the user's own loop: the rows of a batch, or several batches.

- :class:`Scatter` shares one batch: a call computes this rank's rows and returns all rows.
- :class:`LoopWindows` gives each rank several batches per step, by measured speed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flodl.data.structure import changed, changed_rows, tensors_of
from flodl.errors import DistributedError, PlanMismatchError, StateError
from flodl.graph import Graph
from flodl.ranks.planning.elche import (
    Counts,
    ElCheConfig,
    ElCheState,
    RankReport,
    elche_step,
    initial_state,
    split,
)
from flodl.train.plain_loop.joined_rows import Rejoiner, Slice, WholeBatch, take_rows

if TYPE_CHECKING:
    from flodl.data import Batch, DataLoader
    from flodl.ranks.clocks import Stopwatch
    from flodl.ranks.group import Group
    from flodl.train.plain_loop.joined_rows import Cut, Shares


_COMPARE_EVERY = 100
"""Calls between two comparisons of all values of the batches."""


@final
class Scatter:
    """Shares the training calls of a module among the ranks.

    Hooks of the module do this, so ``model(x)`` in a loop stays unchanged. Only training calls are
    shared: those in training mode with gradients enabled. An evaluation runs on the rank that calls
    it, on the whole batch; the other ranks need not call it.

    Args:
        module: The same module on all ranks.
        group: The ranks.
        shares: Decides which rank computes which rows.
        watch: Measures the time in which this rank computes.
    """

    def __init__(self, module: nn.Module, group: Group, shares: Shares, watch: Stopwatch) -> None:
        self._module, self._group, self._shares, self._watch = module, group, shares, watch
        self._rejoiner = Rejoiner(group)
        self._random = OwnRandomness(group.rank, group.device)
        self._call: tuple[Slice, WholeBatch] | None = None
        self._calls = 0
        self._shared = True
        self.last_cut: Cut = (0,) * group.world_size
        """Rows of each rank in the latest call."""
        self._since_step = [0] * group.world_size
        self._batches_since_step = 0.0
        module.register_forward_pre_hook(self._before, with_kwargs=True)
        module.register_forward_hook(self._after, with_kwargs=True)

    def __deepcopy__(self, memo: object) -> Scatter:
        # A copy of the module also has the hooks; for the copy they do nothing.
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Unshared, ()

    @contextmanager
    def whole_batches(self) -> Iterator[None]:
        """Let calls compute whole batches, so that each rank trains its own batches."""
        self._shared = False
        try:
            yield
        finally:
            self._shared = True

    def take_counts(self) -> tuple[list[int], float]:
        """Return the rows of each rank and this rank's share of the batches, then reset both."""
        counts, batches = self._since_step, self._batches_since_step
        self._since_step, self._batches_since_step = [0] * len(counts), 0.0
        return counts, batches

    # The hooks check their module because a copy of it calls them, too.

    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._call = None
        if module is not self._module or not module.training or not torch.is_grad_enabled():
            return None
        self._random.enter()
        if not self._shared:
            return None
        whole: list[Tensor] = []

        def found(tensor: Tensor) -> Tensor:
            whole.append(tensor)
            return tensor

        changed((args, kwargs), found)
        samples = next((tensor.shape[0] for tensor in whole if tensor.dim()), 0)
        if not samples:
            hidden = [type(one).__name__ for one in (*args, *kwargs.values()) if tensors_of(one)]
            told = f" (a {hidden[0]} hides its tensors)" if hidden and not whole else ""
            raise DistributedError(
                f"{type(module).__name__} was called without a tensor of samples{told}, so there "
                "is nothing that the ranks could divide: pass the batch, dimension 0 first"
            )
        part = Slice(self._shares.cut(samples), self._group.rank)
        deep = self._calls % _COMPARE_EVERY == 0
        self._call = part, WholeBatch(whole, self._calls, self._group, deep=deep)
        self._watch.start()

        def taken(value: Any) -> object:
            if isinstance(value, Tensor):
                return take_rows(value, part, self._group)
            return value[part.computed]

        return (
            tuple(changed_rows(one, samples, taken) for one in args),
            {name: changed_rows(one, samples, taken) for name, one in kwargs.items()},
        )

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:  # args and kwargs as torch passes them
        del args, kwargs
        if module is self._module:
            self._random.leave()
        if self._call is None or module is not self._module:
            return output
        (part, batch), self._call = self._call, None
        self._watch.end_forward(part.cut[part.rank] / part.samples)
        self._watch.stop()
        joined = self._join(output, part, batch)
        self._calls += 1
        self.last_cut = part.cut
        self._since_step = [a + b for a, b in zip(self._since_step, part.cut, strict=True)]
        self._batches_since_step += part.cut[part.rank] / part.samples
        self._watch.start()
        return joined

    def _join(self, output: Any, part: Slice, batch: WholeBatch) -> Any:
        leaves, structure = pytree.tree_flatten(output)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        _refuse_unknown(leaves)
        graphs = [m for m in self._module.modules() if isinstance(m, Graph) and m.has_run]
        # The tag of an omitted optional input has no value, on every rank.
        tags = [[v for v in graph._captures.tags or () if v is not None] for graph in graphs]
        outputs, values = self._rejoiner.join(
            [leaves[place] for place in places], [tag for one in tags for tag in one], part, batch
        )
        for place, tensor in zip(places, outputs, strict=True):
            leaves[place] = tensor
        _give_back(graphs, [len(one) for one in tags], values)
        return pytree.tree_unflatten(leaves, structure)


def _give_back(graphs: Sequence[Graph], counts: Sequence[int], values: Sequence[Tensor]) -> None:
    start = 0
    for graph, count in zip(graphs, counts, strict=True):
        joined = iter(values[start : start + count])
        tags = graph._captures.tags or ()
        graph._captures.tags = tuple(None if tag is None else next(joined) for tag in tags)
        start += count


def _refuse_unknown(leaves: Sequence[object]) -> None:
    for leaf in leaves:
        if leaf is not None and not isinstance(leaf, Tensor | int | float | str):
            raise DistributedError(
                f"the model returned a {type(leaf).__name__}, and what it holds cannot be put "
                "together from the ranks: return tensors in tuples, lists or dicts"
            )


@final
class Unshared:
    """Replaces :class:`Scatter` in a pickled model, which computes whole batches again."""

    def _before(self, module: nn.Module, args: object, kwargs: object) -> None:
        """Change nothing."""

    def _after(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        """Change nothing."""


@final
class OwnRandomness:
    """Switches to random numbers of this rank inside a call, and back to the common ones after it.

    Dropout must differ between the ranks, and it draws more numbers for more rows. A loader that
    shuffles with the common generator needs the same generator state on every rank.

    Args:
        rank: Number of this rank; with torch's seed it decides the random numbers.
        device: A CUDA device has a generator that is switched together with the CPU's.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank, self._device = rank, device
        self._own: list[Tensor] | None = None
        self._common: list[Tensor] | None = None

    def enter(self) -> None:
        """Switch to this rank's random numbers."""
        if self._common is not None:  # the previous call ended with an exception
            self.leave()
        self._common = self._states()
        if self._own is None:
            text = f"{torch.initial_seed()} {self._rank}".encode()
            seed = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest())
            torch.default_generator.manual_seed(seed)
            if self._device.type == "cuda":
                torch.cuda.manual_seed(seed)
        else:
            self._set(self._own)

    def leave(self) -> None:
        """Switch back to the common random numbers."""
        if self._common is None:
            return
        self._own = self._states()
        self._set(self._common)
        self._common = None

    def _states(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        if self._device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self._device))
        return states

    def _set(self, states: Sequence[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self._device)


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
