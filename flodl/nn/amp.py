"""Mixed precision: autocast, casting of parameters, and a gradient scaler."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self, TypeVar, final, overload
from weakref import WeakSet

import torch
from torch import Tensor, nn

from flodl.errors import StateError

T = TypeVar("T")


@overload
def autocast(
    dtype: torch.dtype, fn: None = None, device_type: str | None = None
) -> torch.autocast: ...


@overload
def autocast(dtype: torch.dtype, fn: Callable[[], T], device_type: str | None = None) -> T: ...


def autocast(
    dtype: torch.dtype, fn: Callable[[], T] | None = None, device_type: str | None = None
) -> torch.autocast | T:
    """Compute in ``dtype`` where torch considers it safe, and in float32 elsewhere.

    Wrap the forward pass and the loss. Leave out the backward pass; it uses the same dtypes.

    Args:
        dtype: ``torch.bfloat16`` or ``torch.float16``.
        fn: Function to run and whose result to return; None returns a context manager.
        device_type: Device of the tensors; default: CUDA if there is a device, else the CPU.

    Raises:
        ValueError: ``dtype`` is another type.
    """
    if dtype not in _HALF:
        raise ValueError(
            f"autocast({dtype}): use torch.bfloat16 or torch.float16; for full precision leave "
            "autocast out"
        )
    region = torch.autocast(device_type or _default_device_type(), dtype)
    if fn is None:
        return region
    with region:
        return fn()


@final
class AutocastGuard:
    """Switch autocast on until :meth:`close` or until the end of its ``with`` block.

    Args:
        dtype: ``torch.bfloat16`` or ``torch.float16``.
        device_type: Device of the tensors; default: CUDA if there is a device, else the CPU.
    """

    def __init__(self, dtype: torch.dtype, device_type: str | None = None) -> None:
        self._region = autocast(dtype, device_type=device_type)
        self._region.__enter__()  # type: ignore[no-untyped-call]
        self._open = True

    def close(self) -> None:
        """Switch autocast off again; a second call does nothing."""
        if self._open:
            self._open = False
            self._region.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Tell whether autocast is on; default: for CUDA if there is a device, else for the CPU."""
    return bool(torch.is_autocast_enabled(device_type or _default_device_type()))


def cast_parameters(
    params: Iterable[Tensor] | nn.Module,
    dtype: torch.dtype,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Convert floating-point parameters and their gradients to ``dtype``, in place.

    Cast before the first step of an optimizer: its running averages keep the dtype that the
    parameters had at that step.

    Args:
        params: Parameters, or a module to convert all of its parameters.
        dtype: A floating-point type.
        optimizer: The optimizer of these parameters; default: the one attached to the module, if
            any. It is only checked: a warning is given if its ``eps`` becomes 0 in ``dtype``,
            because a division then gives inf.

    Raises:
        ValueError: ``dtype`` is not a floating-point type.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"cast_parameters to {dtype}: parameters need a floating-point type")
    for parameter in params.parameters() if isinstance(params, nn.Module) else params:
        if parameter.is_floating_point():
            grad = parameter.grad
            parameter.grad = None  # torch requires a gradient to have the dtype of its parameter
            parameter.data = parameter.data.to(dtype)
            parameter.grad = None if grad is None else grad.to(dtype)
    if optimizer is None:
        optimizer = getattr(params, "optimizer", None)
    if isinstance(optimizer, torch.optim.Optimizer):
        _warn_of_vanishing_eps(optimizer, dtype)


def scaling_in_progress() -> bool:
    """Whether gradients may be scaled now: after ``scale``, before ``unscale_``."""
    return bool(_scaling)


@final
class GradScaler:
    """Scale the loss so that small fp16 gradients do not become 0, then unscale the gradients.

    The factor grows while gradients are finite and shrinks when they are not. A step with a
    gradient that is not finite is skipped (Micikevicius et al. 2018, "Mixed Precision
    Training"). The results equal those of ``torch.amp.GradScaler``, on any device::

        scaler.scale(loss).backward()
        scaler.step(optimizer, clip_norm=1.0)
        scaler.update()

    Args:
        init: The first factor.
        growth: Multiplies the factor after ``interval`` finite steps in a row; above 1.
        backoff: Multiplies the factor after a step that was not finite; between 0 and 1.
        interval: Finite steps before the factor grows.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        init: float = 65536.0,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ) -> None:
        _check_range("init", init, 0.0, math.inf)
        _check_range("growth", growth, 1.0, math.inf)
        _check_range("backoff", backoff, 0.0, 1.0)
        if interval < 1:
            raise ValueError(f"GradScaler(interval={interval}): it counts steps, use 1 or more")
        self._scale = float(init)
        self._growth = float(growth)
        self._backoff = float(backoff)
        self._interval = interval
        self._finite_steps = 0
        self._scaled = False
        self._stages: dict[torch.optim.Optimizer, _Stage] = {}
        self._all_finite = True
        self.grad_norm: Tensor | None = None
        """Norm before clipping of the latest step that clipped; None if the latest did not."""

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the factor, in float32 or wider; call ``backward()`` on it."""
        self._scaled = True
        _scaling.add(self)
        if loss.dtype in _HALF:
            loss = loss.float()  # fp16 cannot hold 65536
        return loss * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the factor, once per step.

        Call it only to read or change gradients before :meth:`step`.

        Raises:
            StateError: ``scale`` was not called, or these gradients are already unscaled.
            ValueError: A parameter is fp16: its gradient has already lost the small values.
        """
        self._check_scaled("unscale_")
        if optimizer in self._stages:
            raise StateError(
                "the gradients of this optimizer are unscaled already: call unscale_ at most once "
                "between scale and step, and update() after the step"
            )
        gradients = _gradients(optimizer)
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / self._scale)
        self._stages[optimizer] = _Stage.UNSCALED if _finite(gradients) else _Stage.NOT_FINITE
        _scaling.discard(self)

    def step(self, optimizer: torch.optim.Optimizer, clip_norm: float | None = None) -> bool:
        """Unscale the gradients if needed, then clip and step if all of them are finite.

        Args:
            optimizer: The optimizer of the parameters with scaled gradients.
            clip_norm: Largest total 2-norm of the unscaled gradients; None does not clip.

        Returns:
            Whether the optimizer stepped.

        Raises:
            StateError: ``scale`` was not called, or the optimizer stepped since ``update``.
            ValueError: ``clip_norm`` is not greater than 0.
        """
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm={clip_norm!r}: it must be greater than 0")
        self._check_scaled("step")
        if self._stages.get(optimizer) is _Stage.STEPPED:
            raise StateError("this optimizer was stepped already: call update() after each step")
        if optimizer not in self._stages:
            self.unscale_(optimizer)
        self.grad_norm = None
        finite = self._stages[optimizer] is _Stage.UNSCALED
        self._stages[optimizer] = _Stage.STEPPED
        if not finite:
            self._all_finite = False
            return False
        if clip_norm is not None:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            self.grad_norm = nn.utils.clip_grad_norm_(held, clip_norm)
        optimizer.step()
        return True

    def update(self) -> None:
        """Adjust the factor by the results of the steps since the last update."""
        if not self._all_finite or _Stage.NOT_FINITE in self._stages.values():
            # Never 0: no factor makes 0 grow again.
            self._scale = max(self._scale * self._backoff, _SMALLEST)
            self._finite_steps = 0
        else:
            self._finite_steps += 1
            if self._finite_steps == self._interval:
                self._finite_steps = 0
                grown = self._scale * self._growth
                self._scale = grown if grown <= _LARGEST else self._scale
        self._stages.clear()
        self._all_finite = True
        self._scaled = False
        _scaling.discard(self)

    def scale_factor(self) -> float:
        """Return the factor for the next loss."""
        return self._scale

    def state_dict(self) -> dict[str, Any]:
        """Return factor, settings and counter; ``torch.amp.GradScaler`` can load them."""
        return {
            "scale": self._scale,
            "growth_factor": self._growth,
            "backoff_factor": self._backoff,
            "growth_interval": self._interval,
            "_growth_tracker": self._finite_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict` of this class or of ``torch.amp.GradScaler``.

        Raises:
            ValueError: A value is missing or out of its range; nothing was changed.
        """
        missing = [key for key in self.state_dict() if key not in state]
        if missing:
            raise ValueError(
                f"the state of a GradScaler lacks {', '.join(missing)}; it has "
                f"{', '.join(state) or 'nothing'}"
            )
        loaded = GradScaler(
            float(state["scale"]),
            float(state["growth_factor"]),
            float(state["backoff_factor"]),
            int(state["growth_interval"]),
        )
        loaded._finite_steps = int(state["_growth_tracker"])
        _scaling.discard(self)
        self.__dict__.update(loaded.__dict__)

    def _check_scaled(self, method: str) -> None:
        if not self._scaled:
            raise StateError(
                f"GradScaler.{method} without a scaled loss: call scale(loss).backward() first, "
                "or the gradients would be divided by a factor they do not hold"
            )


class _Stage(Enum):
    """Progress of an optimizer since the last update."""

    UNSCALED = auto()
    NOT_FINITE = auto()
    STEPPED = auto()


_HALF = (torch.float16, torch.bfloat16)
_SMALLEST = torch.finfo(torch.float32).tiny
_LARGEST = torch.finfo(torch.float32).max
_scaling: WeakSet[GradScaler] = WeakSet()


def _default_device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors to scale in place: dense gradients and the values of sparse ones."""
    gradients: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if parameter.grad.dtype == torch.float16:
                raise ValueError(
                    f"a parameter of shape {list(parameter.shape)} is float16 itself: its "
                    "gradient overflows where scaling should help; keep parameters in float32 "
                    "and compute under autocast"
                )
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                gradients.append(parameter.grad.values())
            else:
                gradients.append(parameter.grad)
    return gradients


@torch.no_grad()
def _finite(gradients: list[Tensor]) -> bool:
    """Check all gradients with a single wait for the device."""
    filled = [gradient for gradient in gradients if gradient.numel()]
    # The largest magnitude, because the 2-norm of finite numbers may overflow.
    return not filled or bool(torch.isfinite(nn.utils.get_total_norm(filled, math.inf)))


def _warn_of_vanishing_eps(optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    vanishing = {group["eps"] for group in optimizer.param_groups if group.get("eps", tiny) < tiny}
    if vanishing:
        warnings.warn(
            f"{type(optimizer).__name__} has eps={min(vanishing):g}, below the smallest normal "
            f"{dtype} ({tiny:.2g}): it may vanish and a division give inf. Set eps={1e-4:g} or "
            "more, or keep the parameters in float32 and use autocast",
            stacklevel=3,
        )


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low < value < high:
        raise ValueError(f"GradScaler({name}={value!r}): it must lie between {low:g} and {high:g}")
