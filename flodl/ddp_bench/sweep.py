"""Carry out many runs in turn: solo modes in this process, the others on shared ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from flodl import log
from flodl.ddp_bench.cell import Cell
from flodl.ddp_bench.harness import run_cell
from flodl.ddp_bench.records import RunFolder, RunRecord, is_complete, read_run
from flodl.ddp_bench.stage import variables
from flodl.device import usable_gpus
from flodl.errors import WorkersFailed
from flodl.ranks.group import Group, LocalGroup
from flodl.ranks.launch.launcher import detect
from flodl.ranks.launch.start_ranks import launch_ranks
from flodl.train.runner import this_group

_LAUNCHERS = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "JOB_COMPLETION_INDEX")


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run: a record, or the reason why there is none."""

    cell: Cell
    record: RunRecord | None = None
    reason: str = ""


def sweep(cells: Sequence[Cell]) -> list[Outcome]:
    """Carry out runs; after a failed run, the others are still tried.

    If a launcher started this process, all ranks take part and rank 0 returns the outcomes.
    Otherwise solo modes run in this process. The other modes run on ranks that are launched once
    for all of them.
    """
    if detect(os.environ) is not None:
        return _run_here(cells)
    outcomes = [_alone(cell) for cell in cells if cell.solo is not None]
    outcomes += _launched([cell for cell in cells if cell.solo is None])
    order = {id(cell): place for place, cell in enumerate(cells)}
    return sorted(outcomes, key=lambda outcome: order[id(outcome.cell)])


def _alone(cell: Cell) -> Outcome:
    try:
        return Outcome(cell, run_cell(cell, LocalGroup(_device_of(cell))))
    except Exception as error:
        return _failed(cell, f"{type(error).__name__}: {error}")


def _device_of(cell: Cell) -> torch.device:
    number, gpus = cell.solo or 0, usable_gpus()
    if not gpus:
        return torch.device("cpu")
    if number >= len(gpus):
        raise ValueError(f"{cell.mode}: there are {len(gpus)} usable GPUs")
    return torch.device("cuda", gpus[number])


def _launched(cells: Sequence[Cell]) -> list[Outcome]:
    """Launch ranks and run on them; if they fail, try the remaining runs on new ranks."""
    pending, outcomes = list(cells), []
    for cell in pending:
        RunFolder(cell.folder).retire()
    while pending:
        together = [cell for cell in pending if cell.ranks == pending[0].ranks]
        reason = _launch(together)
        ended = [cell for cell in together if is_complete(cell.folder)]
        outcomes += [Outcome(cell, read_run(cell.folder)) for cell in ended]
        if reason and len(ended) < len(together):
            broken = next(cell for cell in together if cell not in ended)
            ended.append(broken)
            outcomes.append(_failed(broken, reason))
        elif reason:
            log.warning(f"a rank failed after all runs were complete: {reason}")
        pending = [cell for cell in pending if cell not in ended]
    return outcomes


def _launch(cells: Sequence[Cell]) -> str:
    """Run all cells in one launch; return why it ended early, or an empty text."""
    first = cells[0]
    gpus = usable_gpus()
    devices = gpus[: first.ranks] if len(gpus) >= first.ranks else None
    simulated = any(cell.simulates for cell in cells)
    try:
        launch_ranks(
            run_as_rank,
            (tuple(cells),),
            first.ranks,
            max_restarts=0,
            simulated=simulated,
            devices=devices,
        )
    except WorkersFailed as error:
        return str(error)
    return ""


def run_as_rank(cells: Sequence[Cell]) -> None:
    """Carry out runs in a process that is a rank."""
    _run_here(cells)


def _run_here(cells: Sequence[Cell]) -> list[Outcome]:
    """Carry out runs on the launched ranks to which this process belongs."""
    group = this_group()
    outcomes = []
    for cell in cells:
        record = _on_ranks(cell, group)
        if record is not None:
            outcomes.append(Outcome(cell, record))
    return outcomes


def _on_ranks(cell: Cell, group: Group) -> RunRecord | None:
    if cell.solo is None:
        return run_cell(cell, group)
    record = None
    if group.rank == cell.solo % group.world_size:
        # So that the training does not see that this is a rank.
        with variables(**dict.fromkeys(_LAUNCHERS)):
            record = run_cell(cell, LocalGroup(group.device))
    records = group.gather_objects(record)
    return next((one for one in records if one is not None), None) if group.leads else None


def _failed(cell: Cell, reason: str) -> Outcome:
    folder = RunFolder(cell.folder)
    cell.folder.mkdir(parents=True, exist_ok=True)
    first = reason.strip().splitlines()[0]
    folder.tell(f"# failed: {first}")
    log.warning(f"{cell.model}/{cell.mode} failed: {reason}")
    return Outcome(cell, None, reason)
