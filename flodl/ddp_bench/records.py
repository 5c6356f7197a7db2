"""The files of a run: its folder, its log, its results as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Self, final

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from fdl.base.files import replace_text
from flodl.errors import DataError

METRICS = "metrics.json"
LOG = "training.log"
TIMELINE = "timeline.json"
_FORMAT = 1
_OWN = re.compile(
    r"metrics\.json|training\.log|timeline(-rank\d+)?\.json|timeline\.(csv|html)|epoch-\d+\.fdl"
)
"""Matches the files that a run writes, but not the names of files that were moved aside."""


_Figure = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that a file gives as null if it is not finite, because JSON has no name for it."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRow:
    """One epoch of one run; values that were not measured are None."""

    epoch: int
    """Number of the epoch, counted from 0."""
    loss: _Figure
    """Mean training loss."""
    eval: _Figure
    train_ms: float
    """Training time, without evaluation and loading."""
    eval_ms: float = 0.0
    k: int = 0
    """Batches of the slowest rank between two exchanges; 0 for a single rank."""
    counts: tuple[int, ...] = ()
    """Batches of each rank between two exchanges, at the end of the epoch."""
    batches: tuple[int, ...] = ()
    """Batches that each rank has trained."""
    busy_ms: tuple[float, ...] | None = None
    comm_ms: float | None = None
    wait_ms: float | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    ranks_apart: float | None = None
    """Largest distance of a rank's parameters and floating buffers from those of rank 0 at the
    evaluation, as a fraction of their norm; None for a single rank."""

    def line(self) -> str:
        """Return the line for the log."""
        return (
            f"epoch {self.epoch + 1}: loss={self.loss:.6g}, eval={self.eval:.6g}, k={self.k}, "
            f"time={self.train_ms / 1000:.3f}s"
        )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A complete run."""

    model: str
    mode: str
    data: str
    """Source of the data; see :data:`~flodl.ddp_bench.data.NOTES`."""
    config: Mapping[str, Any]
    devices: tuple[str, ...]
    """Name of the device of each rank."""
    transport: str
    """How the ranks exchanged values: ``nccl``, ``gloo`` or, for a single rank, ``nobody``."""
    threads: int
    torch: str
    metric: str
    higher_is_better: bool
    rows: tuple[EpochRow, ...]
    loading_ms: float
    total_ms: float
    """Wall time with loading and evaluation."""
    evaluated: int
    """Test samples of one evaluation."""
    syncs: int | None = None
    """Number of exchanges in the whole run."""
    sync_ms: float | None = None
    """Mean duration of an exchange."""
    plans: tuple[tuple[int, ...], ...] = ()
    """Planned batches of each rank, per window."""
    vram: Mapping[str, float] | None = None
    """Peak and mean of the memory reserved on the first GPU, in bytes."""

    @property
    def loss(self) -> float:
        """Training loss of the last epoch."""
        return self.rows[-1].loss

    @property
    def eval(self) -> float:
        """Result of the last evaluation."""
        return self.rows[-1].eval

    @property
    def seconds(self) -> float:
        """Training time of all epochs, without loading and evaluation."""
        return sum(row.train_ms for row in self.rows) / 1000

    @property
    def world_size(self) -> int:
        """Number of processes that trained."""
        return len(self.devices)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.config["seed"])

    @property
    def declared_ms(self) -> tuple[float, ...]:
        """Simulated milliseconds per batch of each rank; empty if not simulated."""
        return tuple(self.config["ddp"].get("simulate_ms") or ())

    @property
    def simulated(self) -> str:
        """Description of the simulated speeds of the ranks; empty if not simulated."""
        ddp = self.config["ddp"]
        if ddp.get("simulate_ms"):
            return "/".join(f"{ms:g}" for ms in ddp["simulate_ms"]) + " ms per batch"
        if ddp.get("simulate_speed"):
            return "/".join(f"{speed:g}" for speed in ddp["simulate_speed"]) + " of real speed"
        return ""

    @property
    def ranks_apart(self) -> float | None:
        """The largest distance between ranks in all epochs; None if it was not measured."""
        known = [row.ranks_apart for row in self.rows if row.ranks_apart is not None]
        return max(known, default=None)

    def total(self, name: str) -> float | None:
        """Return the sum of ``comm_ms`` or ``wait_ms`` over the epochs, None if not measured."""
        values = [getattr(row, name) for row in self.rows]
        return None if None in values else float(sum(values))

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; numbers that are not finite become null."""
        form: dict[str, Any] = _finite({"format": _FORMAT, **asdict(self)})
        return form

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """Read the form that :meth:`as_json` returned.

        Raises:
            DataError: The form is not such a record.
        """
        if form.get("format") != _FORMAT:
            raise DataError(f"format {form.get('format')!r} is not the one of this program")
        try:
            record = TypeAdapter(cls).validate_python(form)
        except ValidationError as error:
            raise DataError(str(error)) from error
        if not record.rows:
            raise DataError("no epoch")
        return record


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


@final
class RunFolder:
    """The folder of one run; rank 0 writes its files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, header: Sequence[str], *, now: datetime | None = None) -> None:
        """Move the files of an earlier run aside and start the log."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.retire(now=now)
        (self.path / LOG).write_text("".join(f"# {line}\n" for line in header), encoding="utf-8")

    def retire(self, *, now: datetime | None = None) -> None:
        """Rename the files of an earlier run to names with the current time, to keep them."""
        if not self.path.is_dir():
            return
        stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
        for old in [path for path in self.path.iterdir() if _OWN.fullmatch(path.name)]:
            old.rename(_free(old.with_name(f"{old.stem}.{stamp}{old.suffix}")))

    def tell(self, line: str) -> None:
        """Add a line to the log."""
        with (self.path / LOG).open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def finish(self, record: RunRecord) -> None:
        """Write the results; from then on the run counts as complete."""
        self.tell(f"final eval={record.eval:.6g}")
        self.tell(f"# total: {record.total_ms / 1000:.3f}s")
        replace_text(self.path / METRICS, json.dumps(record.as_json(), indent=1) + "\n")


def _free(path: Path) -> Path:
    candidate, number = path, 2
    while candidate.exists():
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
        number += 1
    return candidate


def read_run(folder: Path) -> RunRecord:
    """Read the results of a run.

    Raises:
        DataError: The results cannot be read.
    """
    path = folder / METRICS
    try:
        form = json.loads(path.read_text(encoding="utf-8"))
        return RunRecord.from_json(form)
    except (OSError, ValueError, AttributeError, DataError) as error:
        raise DataError(f"{path}: not the figures of a run: {error}") from error


def run_folders(root: Path) -> Iterator[Path]:
    """Yield every folder below ``root`` with a run, complete or not."""
    found = {path.parent for name in (METRICS, LOG) for path in root.rglob(name)}
    yield from sorted(found)


def is_complete(folder: Path) -> bool:
    """Whether a run is complete."""
    return (folder / METRICS).exists()
