"""Float32 matrix products of the CPU through oneDNN, where that is as exact as float32.

torch multiplies with MKL. If the program allows a lower internal precision, torch uses oneDNN
instead. Most often oneDNN still computes in full float32, and can be twice as fast as MKL, or
slower. Some processors have units for low precision, which oneDNN may use. So the error against
float64 decides, not the features that a processor reports.
"""

from __future__ import annotations

import functools
import math
import time
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Product: TypeAlias = tuple[int, int, int]
    """Rows, length of the sums, columns."""

    Multiply: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_PRECISION = ("mkldnn", "matmul")
_TOLERANCE = 1e-5
"""Largest relative error of a float32 product; bfloat16 has 2e-3, TF32 3e-4."""

MEDIUM = (384, 768, 768)
"""Rows, length of the sums and columns of a usual product."""

# Sizes for which libraries choose other kernels: also one row, odd numbers, many short sums, few
# long sums.
_SIZES = (MEDIUM, (1, 512, 512), (33, 65, 129), (1024, 32, 128), (64, 4096, 64))
_ROUNDS = 5

_lock = Lock()
_users = 0
_before = ""


@contextmanager
def routed() -> Iterator[None]:
    """Send float32 matrix products of this process through oneDNN inside the context.

    The setting belongs to torch and holds for the whole process, so it is restored before other
    code runs. Several threads may use it at once.
    """
    global _users, _before
    with _lock:
        if _users == 0:
            _before = torch._C._get_fp32_precision_getter(*_PRECISION)
            torch._C._set_fp32_precision_setter(*_PRECISION, "bf16")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch._C._set_fp32_precision_setter(*_PRECISION, _before)


def routed_product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply two matrices through oneDNN."""
    with routed():
        return left @ right


@functools.cache
def onednn_refusal() -> str:
    """Return why this process must not multiply through oneDNN; empty if it may."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch has no oneDNN"
    if not hasattr(torch._C, "_set_fp32_precision_setter"):
        return f"torch {torch.__version__} has no setting for it"
    return inexact(routed_product)


@torch.no_grad()
def inexact(multiply: Multiply) -> str:
    """Return why products of a function are not those of float32; empty if they are."""
    for size in _SIZES:
        left, right = _factors(size)
        exact = left.double() @ right.double()
        error = float((multiply(left, right).double() - exact).norm() / exact.norm())
        if not error <= _TOLERANCE:
            told = " x ".join(map(str, size))
            return f"the relative error of oneDNN is {error:.1e} in a product of {told}"
    return ""


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
        left, right = _factors(size)
        least = [math.inf, math.inf]  # least disturbed by other programs
        for _ in range(_ROUNDS):
            for way, multiply in enumerate(ways):
                start = time.perf_counter()
                multiply(left, right)
                least[way] = min(least[way], time.perf_counter() - start)
        total = [seconds + more for seconds, more in zip(total, least, strict=True)]
    return total[1] / total[0]


def _factors(size: Product) -> tuple[Tensor, Tensor]:
    """Draw two matrices with a generator of their own."""
    draw = torch.Generator("cpu").manual_seed(0)
    rows, inner, columns = size
    return (
        torch.randn(rows, inner, generator=draw, device="cpu", dtype=torch.float32),
        torch.randn(columns, inner, generator=draw, device="cpu", dtype=torch.float32).t(),
    )
