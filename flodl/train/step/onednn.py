"""Float32 matrix products of the CPU through oneDNN, where that is as exact as float32.

torch multiplies with MKL. If the program allows a lower internal precision, torch uses oneDNN
instead. Most often oneDNN still computes in full float32, and can be twice as fast as MKL, or
slower. Some processors have units for low precision, which oneDNN may use. So the error against
float64 decides, not the features that a processor reports.
"""

from __future__ import annotations

import functools
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
        left, right = factors(size)
        exact = left.double() @ right.double()
        error = float((multiply(left, right).double() - exact).norm() / exact.norm())
        if not error <= _TOLERANCE:
            told = " x ".join(map(str, size))
            return f"the relative error of oneDNN is {error:.1e} in a product of {told}"
    return ""


def factors(size: Product) -> tuple[Tensor, Tensor]:
    """Return the matrices of a product, drawn by a generator of their own."""
    draw = torch.Generator("cpu").manual_seed(0)
    rows, inner, columns = size
    return (
        torch.randn(rows, inner, generator=draw, device="cpu", dtype=torch.float32),
        torch.randn(columns, inner, generator=draw, device="cpu", dtype=torch.float32).t(),
    )
