"""Which library multiplies float32 matrices of a model faster: the usual one or oneDNN."""

from __future__ import annotations

import functools
import math
import time
from typing import TYPE_CHECKING

import torch

from flodl.train.step.tuning import factors, onednn_refusal, routed_product

if TYPE_CHECKING:
    from flodl.train.step.tuning import Multiply, Product

_ROUNDS = 5


@functools.cache
@torch.no_grad()
def time_through_onednn(products: tuple[Product, ...]) -> float:
    """Return the time of products through oneDNN, divided by the usual time.

    It is infinite where oneDNN must not be used. The products are computed a few times.
    """
    if not products or onednn_refusal():
        return math.inf
    ways: tuple[Multiply, Multiply] = (torch.matmul, routed_product)
    total = [0.0, 0.0]
    for size in products:
        left, right = factors(size)
        least = [math.inf, math.inf]  # least disturbed by other programs
        for _ in range(_ROUNDS):
            for way, multiply in enumerate(ways):
                start = time.perf_counter()
                multiply(left, right)
                least[way] = min(least[way], time.perf_counter() - start)
        total = [seconds + more for seconds, more in zip(total, least, strict=True)]
    return total[1] / total[0]
