"""Float32 matrix products on the CPU: which of torch's two libraries multiplies faster here.

torch multiplies through MKL unless told that a lower internal precision is welcome; then it asks
oneDNN. On a processor without units for low precision oneDNN computes in full float32, on some
twice as fast as MKL, on others slower. On a processor with such units the same request really
lowers the precision, so there it is never made.
"""

from __future__ import annotations

import functools
import json
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, final

import torch

from flodl.files import replace_text
from flodl.train.engines.cache import cache_folder, machine_key
from flodl.train.processor import processor_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PRECISION = ("mkldnn", "matmul")
_LOW_PRECISION_UNITS = ("amx", "bf16", "fp16")
_TOLERANCE = 1e-5
_SIDE = 768
_ROUNDS = 15


@final
@dataclass(frozen=True, slots=True)
class RouteVerdict:
    """What the probe of a machine found.

    Attributes:
        forward: Time of a forward product through oneDNN, as a part of the default's.
        backward: The same for the two products of a backward pass.
        error: Largest relative error of a product through oneDNN against float64.
        reason: Why the route must not be used; empty if it may.
    """

    forward: float = 1.0
    backward: float = 1.0
    error: float = 0.0
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return asdict(self)


class OneDnnRoute:
    """Sends float32 matrix products of this process through oneDNN between two calls.

    The setting is torch's and holds for the whole process, so it is set for one phase of a step and
    put back before anybody else's code runs.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = ""

    def enter(self) -> None:
        """Use oneDNN from now on."""
        self._before = torch._C._get_fp32_precision_getter(*_PRECISION)
        torch._C._set_fp32_precision_setter(*_PRECISION, "bf16")

    def leave(self) -> None:
        """Go back to what was set before."""
        torch._C._set_fp32_precision_setter(*_PRECISION, self._before)


_lock = Lock()
_users = 0
_shared = OneDnnRoute()


@contextmanager
def routed() -> Iterator[None]:
    """Send products through oneDNN meanwhile; several threads may do so at a time."""
    global _users
    with _lock:
        if _users == 0:
            _shared.enter()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _shared.leave()


@functools.cache
def route_verdict() -> RouteVerdict:
    """Return what is known about this machine; probes it once and keeps the answer on disk."""
    refusal = _refusal()
    if refusal:
        return RouteVerdict(reason=refusal)
    folder = cache_folder()
    path = folder / f"gemm-{machine_key()}.json"
    with suppress(OSError, ValueError, TypeError):
        return RouteVerdict(**json.loads(path.read_text(encoding="utf-8")))
    verdict = _probe()
    with suppress(OSError):  # a home that cannot be written: probed again next time
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(verdict.as_json()) + "\n")
    return verdict


def _refusal() -> str:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch has no oneDNN"
    if not hasattr(torch._C, "_set_fp32_precision_setter"):
        return f"torch {torch.__version__} has no setting for it"
    flags = _processor_flags()
    units = sorted(flag for flag in flags if any(unit in flag for unit in _LOW_PRECISION_UNITS))
    if units:
        return f"the processor has {', '.join(units)}: the setting would lower the precision"
    return "" if flags else "the abilities of the processor are unknown"


def _processor_flags() -> set[str]:
    return set(processor_facts().get("flags", "").split())


@torch.no_grad()
def _probe() -> RouteVerdict:
    """Multiply matrices of a medium size both ways, interleaved."""
    draw = torch.Generator("cpu").manual_seed(0)
    left = torch.randn(_SIDE // 2, _SIDE, generator=draw, device="cpu")
    weight = torch.randn(_SIDE, _SIDE, generator=draw, device="cpu")
    grad = torch.randn(_SIDE // 2, _SIDE, generator=draw, device="cpu")
    products: dict[str, Callable[[], torch.Tensor]] = {
        "forward": lambda: left @ weight.t(),
        "weights": lambda: grad.t() @ left,
        "inputs": lambda: grad @ weight,
    }
    exact = {
        "forward": left.double() @ weight.double().t(),
        "weights": grad.double().t() @ left.double(),
        "inputs": grad.double() @ weight.double(),
    }
    route = OneDnnRoute()
    times: dict[tuple[str, bool], list[float]] = {}
    error = 0.0
    for number in range(_ROUNDS + 1):
        for name, product in products.items():
            for routed in (False, True):
                took, result = _timed(product, route if routed else None)
                if number:  # the first round plans and allocates
                    times.setdefault((name, routed), []).append(took)
                elif routed:
                    error = max(error, _relative_error(result, exact[name]))
    # The verdict is kept for good: the fastest of each is what a busy minute disturbs least.
    best = {key: min(values) for key, values in times.items()}
    before, after = (
        sum(best[name, routed] for name in ("weights", "inputs")) for routed in (False, True)
    )
    return RouteVerdict(
        forward=round(best["forward", True] / best["forward", False], 3),
        backward=round(after / before, 3),
        error=error,
        reason="" if error <= _TOLERANCE else f"its relative error here is {error:.1e}",
    )


def _timed(
    product: Callable[[], torch.Tensor], route: OneDnnRoute | None
) -> tuple[float, torch.Tensor]:
    if route is not None:
        route.enter()
    try:
        start = time.perf_counter()
        result = product()
        return time.perf_counter() - start, result
    finally:
        if route is not None:
            route.leave()


def _relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())
