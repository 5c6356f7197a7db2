"""Float32 matrix products on the CPU: which of torch's two libraries is faster here.

torch multiplies with MKL. If the program allows a lower internal precision, torch uses oneDNN
instead. Most often oneDNN still computes in full float32. On some processors it is twice as fast as
MKL, on others slower. Some processors have units for low precision, which oneDNN may use. So flodl
measures the error against float64, on the products of the model. It uses oneDNN only if oneDNN is
as exact as float32. The features that a processor reports do not decide anything.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from flodl.files import replace_text
from flodl.train.engines.cache import cache_folder, machine_key
from flodl.train.engines.products import Product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_PRECISION = ("mkldnn", "matmul")
_TOLERANCE = 1e-5
"""Largest relative error of a float32 product; bfloat16 has 2e-3, TF32 3e-4."""
_ROUNDS = 12
_SECONDS = 0.2
_ELEMENTS = 2**20
_MEDIUM = Product(384, 768, 768)
# Sizes for which libraries choose other kernels: one row, odd numbers, many short sums, few long
# sums.
_OTHERS = (
    Product(1, 512, 512),
    Product(33, 65, 129),
    Product(1024, 32, 128),
    Product(64, 4096, 64),
)


@final
@dataclass(frozen=True, slots=True)
class RouteVerdict:
    """The result of measuring a machine.

    Attributes:
        forward: Time of the forward products through oneDNN, divided by that of the default.
        backward: The same for the products of the backward pass, two for each.
        error: Largest relative error of a product through oneDNN against float64.
        reason: Why oneDNN must not be used; empty if it may.
    """

    forward: float = 1.0
    backward: float = 1.0
    error: float = 0.0
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> RouteVerdict:
        """Read the result of :meth:`as_json`.

        Raises:
            ValueError: It has another form.
        """
        try:
            forward, backward, error = (float(form[n]) for n in ("forward", "backward", "error"))
            reason = str(form["reason"])
        except (KeyError, TypeError) as failure:
            raise ValueError(f"not a verdict: {form!r}") from failure
        if not min(forward, backward, error) >= 0:
            raise ValueError(f"not a verdict: {form!r}")
        return cls(forward, backward, error, reason)


class OneDnnRoute:
    """Sends float32 matrix products of this process through oneDNN inside the context.

    The setting belongs to torch and holds for the whole process. So it is set for one phase of a
    step and restored before other code runs.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = ""

    def __enter__(self) -> None:
        """Use oneDNN from now on."""
        self._before = torch._C._get_fp32_precision_getter(*_PRECISION)
        torch._C._set_fp32_precision_setter(*_PRECISION, "bf16")

    def __exit__(self, *_: object) -> None:
        """Restore the previous setting."""
        torch._C._set_fp32_precision_setter(*_PRECISION, self._before)


_lock = Lock()
_users = 0
_shared = OneDnnRoute()


@contextmanager
def routed() -> Iterator[None]:
    """Send products through oneDNN inside the context; several threads may do so at once."""
    global _users
    with _lock:
        if _users == 0:
            _shared.__enter__()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _shared.__exit__()


@functools.cache
def route_verdict(products: tuple[Product, ...] = ()) -> RouteVerdict:
    """Return the measurements for the products of a model on this machine.

    They are measured once and kept on disk. Measuring only multiplies matrices of these sizes, with
    numbers from its own generator.

    Args:
        products: The products of the model. Some other sizes are always measured, too, because the
            model may compute products that are not listed.
    """
    refusal = _refusal()
    if refusal:
        return RouteVerdict(reason=refusal)
    folder = cache_folder()
    sizes = hashlib.sha256(repr(products).encode()).hexdigest()[:16]
    machine = machine_key(torch.__version__, str(torch.get_num_threads()))
    path = folder / f"products-{machine}-{sizes}.json"
    with suppress(OSError, ValueError):
        return RouteVerdict.from_json(json.loads(path.read_text(encoding="utf-8")))
    verdict = probe(products)
    with suppress(OSError):  # a folder that cannot be written: measured again next time
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(verdict.as_json()) + "\n")
    return verdict


def _refusal() -> str:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch has no oneDNN"
    if not hasattr(torch._C, "_set_fp32_precision_setter"):
        return f"torch {torch.__version__} has no setting for it"
    return ""


def routed_product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply two matrices through oneDNN."""
    with OneDnnRoute():
        return left @ right


@torch.no_grad()
def probe(
    products: Sequence[Product] = (), routed: Callable[[Tensor, Tensor], Tensor] = routed_product
) -> RouteVerdict:
    """Measure precision and time of products through both libraries, in turns.

    Args:
        products: The products of a model; without any, the time is that of a medium size.
        routed: The function to measure.
    """
    timed = list(products) or [_MEDIUM]
    error = 0.0
    times: dict[tuple[bool, bool], float] = dict.fromkeys(product_keys(), 0.0)
    for product in dict.fromkeys((*timed, *_OTHERS)):
        measured = _measured(_fitting(product), routed, rounds=_ROUNDS if product in timed else 1)
        error = max(error, measured.error)
        if product in timed:
            for key, seconds in measured.seconds.items():
                times[key] += seconds
        if error > _TOLERANCE:
            sizes = " x ".join(map(str, product))
            return RouteVerdict(
                error=error,
                reason=f"its relative error is {error:.1e} in a product of {sizes}",
            )
    forward, backward = (times[phase, True] / times[phase, False] for phase in (False, True))
    return RouteVerdict(forward=round(forward, 3), backward=round(backward, 3), error=error)


def product_keys() -> list[tuple[bool, bool]]:
    """Return the keys of the times: ``(backward, routed)``."""
    return [(backward, routed) for backward in (False, True) for routed in (False, True)]


def _fitting(product: Product) -> Product:
    """Limit the rows and columns of a product, but not the length of its sums.

    Errors grow with the length of the sums. A product of gigabytes is measured on a part of its
    rows and columns.
    """
    rows, inner, columns = product
    most = max(64, _ELEMENTS // inner)
    return Product(min(rows, most, 2048), inner, min(columns, most, 2048))


class _Measured(NamedTuple):
    """Measurements of a product: the largest relative error, and the least seconds of each way."""

    error: float
    seconds: dict[tuple[bool, bool], float]


def _measured(
    product: Product, routed: Callable[[Tensor, Tensor], Tensor], *, rounds: int
) -> _Measured:
    """Compute a product and the two products of its backward pass, as a linear layer does."""
    draw = torch.Generator("cpu").manual_seed(0)
    rows, inner, columns = product
    value, weight, grad = (
        torch.randn(*shape, generator=draw, device="cpu", dtype=torch.float32)
        for shape in ((rows, inner), (columns, inner), (rows, columns))
    )
    pairs = {"forward": (value, weight.t()), "weights": (grad.t(), value), "inputs": (grad, weight)}
    error, best = 0.0, dict.fromkeys(product_keys(), 0.0)
    ways: dict[bool, Callable[[Tensor, Tensor], Tensor]] = {False: torch.matmul, True: routed}
    for name, (left, right) in pairs.items():
        least = {False: math.inf, True: math.inf}
        deadline = time.perf_counter() + _SECONDS
        for number in range(rounds + 1):
            for is_routed, multiply in ways.items():
                start = time.perf_counter()
                result = multiply(left, right)
                took = time.perf_counter() - start
                if number or rounds == 1:  # the first round plans and allocates
                    least[is_routed] = min(least[is_routed], took)
                if not number and is_routed:
                    error = max(error, _relative_error(result, left, right))
            if number and time.perf_counter() > deadline:
                break
        # The result is kept for good; the least time is least disturbed by a busy machine.
        for is_routed, took in least.items():
            best[name != "forward", is_routed] += took
    return _Measured(error, best)


def _relative_error(result: Tensor, left: Tensor, right: Tensor) -> float:
    exact = left.double() @ right.double()
    error = float((result.double() - exact).norm() / exact.norm())
    return error if math.isfinite(error) else math.inf
