"""Carry out one run on each of its ranks, from an empty folder to the results."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import torch

from flodl import log
from flodl.checkpoint import save_checkpoint_file
from flodl.ddp_bench.builder_modes import train_ranks, train_solo
from flodl.ddp_bench.cell import SETUP_MODE, TORCH_DDP, TORCH_LOCAL, Cell
from flodl.ddp_bench.data import NOTES, load
from flodl.ddp_bench.evaluation import Evaluation
from flodl.ddp_bench.records import TIMELINE, EpochRow, RunFolder, RunRecord
from flodl.ddp_bench.setup_mode import train_setup
from flodl.ddp_bench.stage import Stage
from flodl.ddp_bench.torch_modes import train_gradient_average, train_local_steps
from flodl.device import hardware_name
from flodl.monitor import EventKind, Timeline
from flodl.train.observers import merged_timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from flodl.ranks.group import Group

_TRAIN: dict[str, Callable[[Stage], None]] = {
    SETUP_MODE: train_setup,
    TORCH_DDP: train_gradient_average,
    TORCH_LOCAL: train_local_steps,
}


def run_cell(cell: Cell, group: Group) -> RunRecord | None:
    """Carry out one run; all its ranks call this together.

    Args:
        cell: The run.
        group: The ranks.

    Returns:
        The record of the run on rank 0, None elsewhere.

    Raises:
        DataError: The data is not available.
    """
    began = time.perf_counter()
    with _threads(cell):
        return _Run(cell, group, began).carry_out()


@final
class _Run:
    def __init__(self, cell: Cell, group: Group, began: float) -> None:
        self._cell, self._group, self._began = cell, group, began
        self._folder = RunFolder(cell.folder)
        self._rows: list[EpochRow] = []
        self._devices = tuple(group.gather_objects(device_name(group.device)))
        self._threads = torch.get_num_threads()

    def carry_out(self) -> RunRecord | None:
        cell, group = self._cell, self._group
        if group.leads:
            self._folder.begin(self._header())
        data = load(
            cell.task.data,
            cell.source,
            cell.data_dir,
            batches=cell.batches,
            batch_size=cell.batch_size,
            seed=cell.seed,
            offline=cell.offline,
        )
        evaluate = Evaluation(cell.task, data, group, group.device)
        self._loaded = time.perf_counter()
        several = group.world_size > 1
        with Timeline(rank=group.rank if several else None) as timeline:
            stage = Stage(cell, data, group, evaluate, timeline, self._tell, self._keep)
            _TRAIN.get(cell.mode, train_solo if cell.solo is not None else train_ranks)(stage)
        kept = cell.folder if cell.keep_timelines else None
        merged = merged_timeline(timeline, group, kept)
        if merged is None:
            return None
        record = self._record(merged, evaluate.samples)
        self._save_timeline(merged)
        self._folder.finish(record)
        return record

    def _header(self) -> list[str]:
        cell = self._cell
        lines = [f"gpu{rank}: {name}" for rank, name in enumerate(self._devices)]
        lines.append(
            f"{cell.model}, {cell.mode}, {self._group.world_size} ranks, exchange by "
            f"{self._transport}, {self._threads} threads each, torch {torch.__version__}"
        )
        if NOTES[cell.source]:
            lines.append(NOTES[cell.source])
        if cell.simulates:
            lines.append("the pace of the ranks is declared, not that of the device")
        lines.append(f"config {json.dumps(cell.config())}")
        return lines

    @property
    def _transport(self) -> str:
        if self._group.world_size == 1:
            return "nobody"
        through_host = self._group.device.type == "cpu" or self._cell.mode.startswith("cpu-")
        return "gloo" if through_host else "nccl"

    def _tell(self, row: EpochRow) -> None:
        self._rows.append(row)
        self._folder.tell(row.line())
        log.msg("{}/{} {}", self._cell.model, self._cell.mode, row.line())

    def _keep(self, epochs: int, model: nn.Module) -> None:
        every = self._cell.checkpoint_every
        if every is not None and epochs % every == 0:
            path = self._cell.folder / f"epoch-{epochs}.fdl"
            save_checkpoint_file(path, model.named_parameters(), model.named_buffers())

    def _save_timeline(self, timeline: Timeline) -> None:
        folder = self._cell.folder
        timeline.save_json(folder / TIMELINE)
        timeline.save_csv(folder / "timeline.csv")
        timeline.save_html(
            folder / "timeline.html", title=f"{self._cell.model} · {self._cell.mode}"
        )

    def _record(self, timeline: Timeline, evaluated: int) -> RunRecord:
        cell, judgement = self._cell, self._cell.task.judgement
        first = [event for event in timeline.events if event.rank in (None, 0)]
        lengths = [
            float(event.fields["ms"])
            for event in first
            if event.kind in (EventKind.SYNC_END, EventKind.CPU_AVG_END)
        ]
        plans = [event.fields["counts"] for event in first if event.kind is EventKind.PLAN]
        return RunRecord(
            model=cell.model,
            mode=cell.mode,
            data=cell.source,
            config=cell.config(),
            devices=self._devices,
            transport=self._transport,
            threads=self._threads,
            torch=torch.__version__,
            metric=judgement.name,
            higher_is_better=judgement.higher_is_better,
            rows=tuple(self._rows),
            loading_ms=(self._loaded - self._began) * 1000,
            total_ms=(time.perf_counter() - self._began) * 1000,
            evaluated=evaluated,
            syncs=len(lengths) or None,
            sync_ms=sum(lengths) / len(lengths) if lengths else None,
            plans=tuple(tuple(counts) for counts in plans),
            vram=_vram(timeline),
        )


def _vram(timeline: Timeline) -> dict[str, float] | None:
    reserved = [float(sample.gpus[0].reserved) for sample in timeline.samples if sample.gpus]
    if not reserved:
        return None
    return {"peak": max(reserved), "mean": sum(reserved) / len(reserved)}


def device_name(device: torch.device) -> str:
    """Return the name of a device."""
    return hardware_name(device) if device.type == "cuda" else f"CPU {hardware_name(device)}"


@contextmanager
def _threads(cell: Cell) -> Iterator[None]:
    """Give a solo rank as many threads as each of several ranks, so that speeds compare."""
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    torch.set_num_threads(1 if cell.simulates else max(1, (cores or 1) // cell.ranks))
    try:
        yield
    finally:
        torch.set_num_threads(before)
