"""The user's own loop on several ranks: join them and prepare each update, or exchange by hand."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn

from flodl.device import hardware_name, usable_gpus
from flodl.graph.state import Stateful
from flodl.log import msg
from flodl.ranks.averaging.gradients import StepAverager
from flodl.ranks.averaging.state_tensors import SharedBuffers, broadcast_state, model_facts
from flodl.ranks.clocks import DeviceWatch, HostWatch, Stopwatch
from flodl.ranks.launch.join import join, this_group
from flodl.ranks.launch.launcher import detect, mark_begun, mark_watched
from flodl.ranks.planning.elche import ElCheConfig
from flodl.ranks.settings import Backend, DdpConfig, hinted_speeds, simulated_ms
from flodl.ranks.signature import check_same, reads_files, signature
from flodl.train.plain_loop.joined_rows import Shares
from flodl.train.plain_loop.sharing import LoopWindows, Scatter, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from flodl.data import Batch, DataLoader
    from flodl.ranks.group import Group

_ANCHOR = 10
_MAX_ANCHOR = 200


def joined(device: torch.device | str | None = None) -> Group:
    """Join the ranks to which this process belongs.

    Args:
        device: Device to train on; None: choose one.

    Raises:
        DistributedError: The environment names ranks but is incomplete.
        ValueError: The device does not exist here.
    """
    launched = detect(os.environ)
    if launched is not None and launched.world_size > 1:
        return this_group(device)
    group = join(os.environ, device=device)
    if launched is None and device is None:
        group.device = best_device() or group.device
    return group


@final
class SharedLoop:
    """One model in a loop that all ranks run in the same way.

    Args:
        model: A model on the device of the group; its state is replaced by that of rank 0.
        group: The ranks, or a single one.
        config: Settings; None: windows are used only if the ranks have different devices.
        watch: Measures this rank; None: use the host's clock, or events of the GPU.

    Raises:
        DistributedError: The models of the ranks differ.
        ValueError: The ``speed_hint`` names an unknown rank.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        config: DdpConfig | None,
        watch: Stopwatch | None = None,
    ) -> None:
        mark_watched()
        self._model, self.group = model, group
        config, forced = config or DdpConfig(), config is not None
        self._timeline = config.timeline
        facts = group.gather_objects(_kind(group))
        self.devices = tuple(torch.device(fact["device"]) for fact in facts)
        mixed = len({(fact["name"], fact["simulated"]) for fact in facts}) > 1
        windowed = group.world_size > 1 and config.max_anchor != 0 and (forced or mixed)
        self._watch = watch or _watch_of(group)
        self.windows = LoopWindows(
            group,
            _elche_config(config, group.world_size) if windowed else None,
            hinted_speeds(config.speed_hint, group.world_size),
            self._watch,
        )
        self.has_el_che = windowed
        # Speeds that are measured must not change what equal devices compute.
        balanced = (forced or mixed) and not _carries_state(model)
        self.shares = Shares(group.world_size, balanced=balanced)
        self.scatter: Scatter | None = None
        if group.world_size > 1:
            reads = reads_files(os.environ)
            check_same(group, signature(model_facts(model), files=reads))
            broadcast_state(model, group)
            self.scatter = Scatter(model, group, self.shares, self._watch)
            self._averager = StepAverager(model, group, Backend.NCCL)

    def epoch(
        self, epoch: int, loader: DataLoader, loss: Callable[[Batch], Tensor]
    ) -> Iterator[Window]:
        """Train an epoch window by window; yield each window before its step.

        Raises:
            DistributedError: The loaders of the ranks differ.
            StateError: There was no step after the previous window.
        """
        if self.scatter is not None:
            facts = {"epoch": epoch, **_data_of(loader)}
            check_same(self.group, signature(facts, files=False))
        whole = contextlib.nullcontext if self.scatter is None else self.scatter.whole_batches

        def loss_of(batch: Batch) -> Tensor:
            with whole():
                return loss(batch)

        return self.windows.epoch(epoch, loader, loss_of)

    def before_update(self, max_grad_norm: float | None) -> None:
        """Average gradients and buffers over the ranks, and clip the gradients; collective.

        With a window, each rank clips its own mean gradient before the average. In a loop over
        shared batches, the mean over all ranks is clipped.
        """
        window = self.windows.open
        parameters = list(self._model.parameters())
        if window is not None:
            window.average_gradients(parameters)
            _clip(parameters, max_grad_norm)
            began = time.perf_counter()
            if self.scatter is not None:
                self._event("sync_start")
                self._averager.average(window.samples)
            sync_ms = (time.perf_counter() - began) * 1e3
            before, after = self.windows.close(sync_ms)
            if self.scatter is not None:
                self._event("sync_end", ms=sync_ms)
            if before != after:
                self._event("anchor", **{"from": before, "to": after})
            mark_begun()
            return
        if self.scatter is not None:
            self._reduce_slices(self.scatter)
        _clip(parameters, max_grad_norm)
        mark_begun()

    def _reduce_slices(self, scatter: Scatter) -> None:
        self._watch.stop()
        counts, batches = scatter.take_counts()
        timings = [0.0] * self.group.world_size
        timings[self.group.rank] = self._watch.take(batches)
        began = time.perf_counter()
        self._event("sync_start")
        # The gradients of the ranks count equally: joined_rows has already scaled them.
        found = self._averager.average(1, timings, rows=counts[self.group.rank])
        self._event("sync_end", ms=(time.perf_counter() - began) * 1e3)
        self.shares.learn(counts, found)

    def _event(self, kind: str, **fields: object) -> None:
        if self._timeline is not None:
            self._timeline.event(kind, **fields)


@final
class Ddp:
    """Modules of this rank, and explicit exchanges with the other ranks; see :meth:`wrap`."""

    def __init__(self, modules: Sequence[nn.Module], group: Group) -> None:
        mark_watched()
        self._group = group
        # One module that holds all: tied parameters count once, and one exchange covers all.
        self._module = nn.ModuleList(modules).to(group.device)
        self._averager = StepAverager(self._module, group, Backend.NCCL)
        self._buffers = SharedBuffers(self._module, group, Backend.NCCL)
        kinds = group.gather_objects(str(group.device))
        self._devices = tuple(kinds)

    @classmethod
    def wrap(cls, *modules: nn.Module, group: Group | None = None) -> Ddp:
        """Move modules to this rank's device and return an object with the exchanges.

        Every rank must pass the same modules. Call the exchanges yourself: :meth:`sync_params`
        once, and :meth:`all_reduce_gradients` after each ``backward``. In a single process every
        exchange does nothing, so the same loop runs there.

        Args:
            modules: One or more modules, built in the same way on every rank.
            group: The ranks; default: those to which this process belongs.

        Raises:
            ValueError: No module was given.
            DistributedError: The environment names ranks but is incomplete.
        """
        if not modules:
            raise ValueError("Ddp.wrap needs a module, such as Ddp.wrap(model)")
        return cls(modules, group or joined())

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self._group.world_size

    @property
    def device(self) -> torch.device:
        """Device of the modules of this rank; put the batches there."""
        return self._group.device

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of every rank, such as ``"cuda:1"``, as named on its own host."""
        return self._devices

    def sync_params(self) -> None:
        """Overwrite parameters and buffers with those of rank 0; collective."""
        if self.world_size > 1:
            broadcast_state(self._module, self._group)
            self._buffers = SharedBuffers(self._module, self._group, Backend.NCCL)

    def all_reduce_gradients(self) -> None:
        """Replace every gradient with its mean over the ranks; collective.

        A gradient that is missing on some ranks counts as zeros there.
        """
        self.weighted_all_reduce_gradients(1)

    def weighted_all_reduce_gradients(self, counts: int | Sequence[int]) -> None:
        """Replace every gradient with its weighted mean over the ranks; collective.

        Args:
            counts: Number of samples in the mean of each rank's gradient: one number for this
                rank, or one per rank in rank order.

        Raises:
            ValueError: There is not one count per rank.
        """
        own = counts if isinstance(counts, int) else self._own(counts)
        if self.world_size > 1:
            self._averager.reduce(own)
            mark_begun()

    def sync_buffers(self, counts: int | Sequence[int] = 1) -> None:
        """Average floating buffers and take the maximum of the others; collective.

        Args:
            counts: Weights, as in :meth:`weighted_all_reduce_gradients`.

        Raises:
            ValueError: There is not one count per rank, or all counts are 0.
        """
        own = counts if isinstance(counts, int) else self._own(counts)
        if self.world_size == 1:
            return
        if self._buffers.average(own) == 0:
            raise ValueError("every rank counts 0: there is nothing to average")

    def _own(self, counts: Sequence[int]) -> int:
        if len(counts) != self.world_size:
            raise ValueError(
                f"counts={list(counts)!r} for {self.world_size} ranks: give one per rank, or only "
                "that of this rank"
            )
        return counts[self.rank]


def _clip(parameters: list[nn.Parameter], limit: float | None) -> None:
    if limit is not None:
        torch.nn.utils.clip_grad_norm_(parameters, limit)


def _kind(group: Group) -> dict[str, Any]:
    simulated = simulated_ms()
    device = group.device
    own = simulated[group.rank] if simulated and group.rank < len(simulated) else None
    return {"device": str(device), "name": hardware_name(device), "simulated": own}


def _watch_of(group: Group) -> Stopwatch:
    simulated = simulated_ms()
    if simulated is not None and len(simulated) != group.world_size > 1:
        raise ValueError(
            f"FLODL_SIM_MS has {len(simulated)} values and there are {group.world_size} ranks: "
            "give one per rank"
        )
    if simulated is None and group.device.type == "cuda":
        return DeviceWatch()
    return HostWatch(None if simulated is None else simulated[group.rank])


def _elche_config(config: DdpConfig, world_size: int) -> ElCheConfig:
    limit = _MAX_ANCHOR if config.max_anchor is None else config.max_anchor
    return ElCheConfig(
        world_size=world_size,
        anchor=min(_ANCHOR, limit),
        max_anchor=limit,
        overhead_target=config.overhead_target,
    )


def _carries_state(model: nn.Module) -> bool:
    """Whether the model keeps state per row, so that rows must stay on their rank."""
    return any(isinstance(module, Stateful) and module.has_state() for module in model.modules())


def _data_of(loader: DataLoader) -> dict[str, object]:
    state = loader.state_dict()
    return {name: state[name] for name in ("seed", "n", "batch_size", "drop_last")}


def best_device() -> torch.device | None:
    """Return the largest of several usable GPUs, and print how to start one rank per GPU.

    A running program cannot turn into several ranks. With fewer than two usable GPUs this returns
    None.
    """
    if torch.cuda.device_count() < 2:
        return None
    usable = usable_gpus()
    if len(usable) < 2:
        return None
    best = max(usable, key=_size_of_gpu)
    msg(
        "  {} GPUs are usable and this program runs on one, cuda:{} ({}); on all of them:\n    {}\n"
        "  or, as a command of an fdl project, fdl train --ranks {}",
        len(usable),
        best,
        torch.cuda.get_device_name(best),
        launch_command(len(usable)),
        len(usable),
    )
    return torch.device("cuda", best)


def _size_of_gpu(index: int) -> tuple[int, int, int]:
    facts = torch.cuda.get_device_properties(index)
    return facts.multi_processor_count, facts.total_memory, -index


def launch_command(ranks: int) -> str:
    """Return the command that starts this program once per rank."""
    specification = getattr(sys.modules["__main__"], "__spec__", None)
    if specification is None:
        program = ["--", sys.argv[0]]
    else:
        program = ["-m", "--", specification.name.removesuffix(".__main__")]
    return shlex.join(
        ["torchrun", "--standalone", f"--nproc-per-node={ranks}", *program, *sys.argv[1:]]
    )
