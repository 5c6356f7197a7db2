"""Evaluate a model on the whole test set, which the ranks share."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, final

import torch

from flodl.ddp_bench.data import BenchData, prepare
from flodl.nn.modes import evaluating

if TYPE_CHECKING:
    from torch import nn

    from flodl.ddp_bench.models import Task
    from flodl.ranks.group import Group

_BATCH = 256
_PROJECTIONS = 8


@final
class Evaluation:
    """Evaluates a model on the whole test set; all ranks call it together.

    Each of the W ranks takes every W-th sample, and the sums of all ranks are added up. So the
    result does not depend on the number of ranks.

    Attributes:
        samples: Samples of all ranks in the latest evaluation.
        ms: Duration of the latest evaluation.
        total_ms: Duration of all evaluations so far.
        ranks_apart: Largest distance of a rank's model from that of rank 0 in the latest
            evaluation, as a fraction of its norm; None for a single rank.
    """

    def __init__(self, task: Task, data: BenchData, group: Group, device: torch.device) -> None:
        self._task, self._group = task, group
        inputs, targets = data.test.tensors
        mine = slice(group.rank, None, group.world_size)
        self._inputs, self._targets = inputs[mine].to(device), targets[mine].to(device)
        self.samples = 0
        self.ms = self.total_ms = 0.0
        self.ranks_apart: float | None = None

    def __call__(self, model: nn.Module) -> float:
        """Return the result; modules keep their training mode, and no gradients are computed."""
        began = time.perf_counter()
        with evaluating(model), torch.no_grad():
            total, count = self._sums(model)
        rows = self._group.gather([total, count, len(self._inputs), *_fingerprint(model)])
        if len(rows) > 1:
            self.ranks_apart = _distance([row[3:] for row in rows])
        self.samples = int(sum(row[2] for row in rows))
        self.ms = (time.perf_counter() - began) * 1000
        self.total_ms += self.ms
        return sum(row[0] for row in rows) / sum(row[1] for row in rows)

    def _sums(self, model: nn.Module) -> tuple[float, float]:
        terms = self._task.judgement.terms
        total = torch.zeros((), dtype=torch.float64, device=self._inputs.device)
        count = 0
        parts = (torch.split(one, _BATCH) for one in (self._inputs, self._targets))
        for inputs, targets in zip(*parts, strict=True):
            ready, wanted = prepare(self._task, inputs, targets)
            part, size = terms(model(ready), wanted)
            total += part
            count += size
        return float(total), float(count)


@torch.no_grad()
def _fingerprint(model: nn.Module) -> list[float]:
    """Return the norm of all floating values, and a few sums of them with random signs.

    The squared difference of two such sums is, on average, the squared distance of the models. So
    a few numbers are enough to estimate the distance between ranks.
    """
    generator = torch.Generator().manual_seed(0)
    sums, square = [0.0] * _PROJECTIONS, 0.0
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_floating_point():
            continue
        values = tensor.detach().to("cpu", torch.float64).flatten()
        square += float(values @ values)
        for index in range(_PROJECTIONS):
            drawn = torch.randint(0, 2, values.shape, generator=generator, device="cpu")
            sums[index] += float(values @ drawn.mul_(2).sub_(1).double())
    return [math.sqrt(square), *sums]


def _distance(rows: list[list[float]]) -> float:
    """Return the largest distance from the first row, as a fraction of the first norm.

    If a distance is not finite, return the largest float, because JSON has no infinity.
    """
    norm, *first = rows[0]
    distances = [math.dist(first, row[1:]) for row in rows]
    if not all(map(math.isfinite, distances)):
        return sys.float_info.max
    far = max(distances) / math.sqrt(_PROJECTIONS)
    return far / norm if norm else far
