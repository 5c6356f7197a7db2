"""A request to the benchmark, and the runs that it contains."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, final

from flodl.data.download import fetch
from flodl.ddp_bench.cell import MODES, Cell, CommonSettings, is_mode, starting_rate
from flodl.ddp_bench.data import missing_files, offline_message
from flodl.ddp_bench.models import TASKS
from flodl.device import usable_gpus
from flodl.errors import DataError
from flodl.log import warning
from flodl.ranks.launch.launcher import detect

if TYPE_CHECKING:
    from flodl.ddp_bench.models.task import DataName

ALL = "all"
_RANKS_WITHOUT_GPUS = 2


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Request(CommonSettings):
    """Models, modes and settings; for model settings, None means the default of the model."""

    models: tuple[str, ...]
    modes: tuple[str, ...]
    output: Path = Path("runs")
    epochs: int | None = None
    lr: float | None = None
    seeds: int = 1
    ranks: int | None = None


def chosen(words: Iterable[str], known: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the requested names without duplicates; ``all`` means all of ``known``.

    Raises:
        ValueError: A name is unknown.
    """
    wanted = list(words)
    if ALL in wanted:
        return tuple(known)
    for word in wanted:
        if word not in known and not (what == "mode" and is_mode(word)):
            raise ValueError(f"no {what} `{word}`: use {ALL}, or some of {', '.join(known)}")
    return tuple(dict.fromkeys(wanted))


def cells_of(request: Request) -> list[Cell]:
    """Return the requested runs, model by model.

    Raises:
        ValueError: A name is unknown, or a setting does not fit the number of ranks.
    """
    if request.ddp.elastic:
        raise ValueError("elastic: the benchmark compares ranks that stay; leave it out")
    models = chosen(request.models, tuple(TASKS), "model")
    modes = chosen(request.modes, MODES, "mode")
    ranks = ranks_of(request)
    request.ddp.check_world(ranks)
    for name in ("epochs", "batches", "batch_size", "seeds"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: it must be at least 1")
    cells = [
        _cell(request, model, mode, seed, ranks)
        for model in models
        for mode in modes
        for seed in range(request.seed, request.seed + request.seeds)
    ]
    _check_nodes(request, cells)
    _check_devices(ranks, cells)
    if request.lr_scale is not None and any(cell.rate_factor > 1 for cell in cells):
        factor = max(cell.rate_factor for cell in cells)
        warning(
            f"--lr-scale {request.lr_scale:g} comes on top of the factor {factor:g} that "
            f"lr_scale_ratio gives {ranks} ranks; --lr-scale-ratio 0 leaves that one out"
        )
    return cells


def ranks_of(request: Request) -> int:
    """Return the number of ranks: as launched, requested or simulated, else from the GPUs."""
    launched = detect(os.environ)
    if launched is not None:
        return launched.world_size
    if request.ranks is not None:
        return request.ranks
    for declared in (request.ddp.simulate_ms, request.ddp.simulate_speed):
        if declared is not None:
            return len(declared)
    gpus = len(usable_gpus())
    return gpus if gpus > 1 else _RANKS_WITHOUT_GPUS


def ensure_data(request: Request) -> None:
    """Download the real data sets before any training starts.

    Raises:
        DataError: Data is missing and cannot, or must not, be downloaded.
    """
    if request.source != "real":
        return
    names: list[DataName] = list(
        dict.fromkeys(TASKS[model].data for model in chosen(request.models, tuple(TASKS), "model"))
    )
    absent = missing_files(names, request.data_dir)
    if absent and request.offline:
        raise DataError(offline_message(absent))
    try:
        for file, path in absent:
            fetch(file, path.parent)
    except DataError as error:
        raise DataError(
            f"{error}\nWithout network: --data packaged trains on small data that flodl ships"
        ) from error


def _cell(request: Request, model: str, mode: str, seed: int, ranks: int) -> Cell:
    task = TASKS[model]
    epochs = request.epochs or task.epochs
    folder = request.output / model / mode
    if request.seeds > 1:
        folder /= f"seed-{seed}"
    common = {one.name: getattr(request, one.name) for one in fields(CommonSettings)}
    return Cell(
        **common | {"seed": seed},
        model=model,
        mode=mode,
        folder=folder,
        epochs=epochs,
        lr=starting_rate(task, epochs, request.lr, request.lr_scale),
        ranks=ranks,
    )


def _check_nodes(request: Request, cells: Sequence[Cell]) -> None:
    nodes = dict(request.launch).get("nodes", "1")
    several = [cell for cell in cells if cell.solo is None]
    if nodes in ("", "1") or not several or detect(os.environ) is not None:
        return
    meeting = dict(request.launch).get("rdzv") or "HOST:29400"
    raise ValueError(
        f"nodes={nodes}: the ranks of several machines are started by torchrun; on each of them: "
        f"torchrun --nnodes={nodes} --nproc-per-node={cells[0].ranks} --rdzv-backend=c10d "
        f"--rdzv-endpoint={meeting} -m flodl.ddp_bench …"
    )


def _check_devices(ranks: int, cells: Sequence[Cell]) -> None:
    """Refuse more ranks than GPUs before anything starts; such ranks would fail one by one."""
    gpus = len(usable_gpus())
    if 0 < gpus < ranks and detect(os.environ) is None and any(c.solo is None for c in cells):
        raise ValueError(
            f"{ranks} ranks and {gpus} usable GPUs: each rank needs one of its own; use --ranks "
            f"{gpus}, or let all ranks use the processor with CUDA_VISIBLE_DEVICES= (empty)"
        )
