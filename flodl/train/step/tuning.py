"""Tunings of a step, which change how it computes, not what.

Here are a fused optimizer, channels innermost, oneDNN products and fewer threads. ``halves``
compiles a step, and ``capturing`` captures it as a CUDA graph.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from fdl.base.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Product: TypeAlias = tuple[int, int, int]
    """Rows, length of the sums, columns."""

    Multiply: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True, slots=True)
class Tuning:
    """A way to compute a step; the default is torch's own way.

    Attributes:
        fused: Use one kernel for the optimizer.
        channels_last: Store weights of convolutions with the channels innermost.
        onednn: Compute float32 matrix products with oneDNN.
        threads: Threads of an operation; 0 for the number that the user has set.
        compiled: Compute forward and backward with torch.compile.
        autotuned: The same after torch.compile has tried many kernels, which takes minutes.
        captured: Repeat the whole step as a CUDA graph.
    """

    fused: bool = False
    channels_last: bool = False
    onednn: bool = False
    threads: int = 0
    compiled: bool = False
    autotuned: bool = False
    captured: bool = False

    def names(self) -> list[str]:
        """Return the differences from torch's own way, in words."""
        words = {
            "fused": "fused optimizer",
            "channels_last": "channels last",
            "onednn": "oneDNN products",
            "threads": counted(self.threads, "thread"),
            "compiled": "compiled",
            "autotuned": "compiled and autotuned",
            "captured": "CUDA graph",
        }
        return [word for field, word in words.items() if getattr(self, field)]

    def __str__(self) -> str:
        return " + ".join(self.names()) or "plain"

    def as_json(self) -> dict[str, Any]:
        """Return the tuning as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Tuning:
        """Read the result of :meth:`as_json`.

        Raises:
            ValueError: It has another form.
        """
        usual = asdict(cls())
        if form.keys() != usual.keys() or any(type(form[n]) is not type(usual[n]) for n in usual):
            raise ValueError(f"not a tuning: {form!r}")
        if form["threads"] < 0:
            raise ValueError(f"not a number of threads: {form['threads']}")
        return cls(**form)


@final
class ThreadLimit:
    """Lets operations use fewer threads inside the context.

    Args:
        threads: Largest number of threads.

    Attributes:
        overruled: Whether the program has set its own number inside the context; that number stays.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._before = 0
        self.overruled = False

    def __enter__(self) -> None:
        """Save the user's number, and set a smaller one."""
        self._before = torch.get_num_threads()
        if self._threads < self._before:
            torch.set_num_threads(self._threads)

    def __exit__(self, *_: object) -> None:
        """Restore the user's number."""
        now = torch.get_num_threads()
        if now != min(self._threads, self._before):
            self.overruled = True
        elif now != self._before:
            torch.set_num_threads(self._before)


def fewer_threads(*, single: bool) -> list[int]:
    """Return the numbers of threads to try: half, and one if a step with one is short enough."""
    threads = torch.get_num_threads()
    return sorted({threads // 2, *((1,) if single else ())} - {0, threads}, reverse=True)


def compiled_by_program(model: nn.Module, step: object) -> bool:
    """Whether the program compiles its model or its step with torch."""
    mark = "_torchdynamo_orig_callable"
    return hasattr(step, mark) or any(
        hasattr(one, mark) or one._compiled_call_impl is not None for one in model.modules()
    )


_CHOICES = ("fused", "foreach", "capturable", "differentiable")


def fused_step(optimizer: Optimizer) -> FusedStep | None:
    """Return a step of this optimizer through torch's fused kernel, or None without one.

    It is also None if the user has chosen an implementation: ``fused``, ``foreach``, ``capturable``
    or ``differentiable``.
    """
    if replaces_step(optimizer) or not runs_torchs_step(optimizer):
        return None
    groups = optimizer.param_groups
    if any(group.get(name) for group in groups for name in _CHOICES):
        return None
    tensors = [p for group in groups for p in group["params"]]
    return FusedStep(optimizer) if all(p.is_floating_point() for p in tensors) else None


def replaces_step(optimizer: Optimizer) -> bool:
    """Whether the program has replaced ``step``; torch's schedulers wrap it to count."""
    replaced = vars(optimizer).get("step")
    return replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched")


def runs_torchs_step(optimizer: Optimizer) -> bool:
    """Whether the step of an optimizer is that of torch's SGD, Adam or AdamW."""
    for kind in (SGD, Adam, AdamW):
        if isinstance(optimizer, kind):
            # torch wraps `step` per class; the wrapped function shows whether a subclass changed
            # it.
            mine: Callable[..., Any] = inspect.unwrap(type(optimizer).step)
            if mine is inspect.unwrap(kind.step):
                return True
    return False


def place_step_counts(optimizer: Optimizer, *, fused: bool) -> None:
    """Move the step counts of a state to where the next kind of step needs them.

    A fused kernel reads them on the device of the parameter. The plain step expects them on the
    processor; from a GPU it would read every one of them, and wait for it.
    """
    for parameter, state in optimizer.state.items():
        count = state.get("step")
        # Asked first: `to` takes longer than this even where it has nothing to do.
        if isinstance(count, Tensor) and count.is_cpu is not (parameter.is_cpu or not fused):
            state["step"] = count.to(parameter.device if fused else "cpu")


def _has_sparse_gradient(optimizer: Optimizer) -> bool:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is not None and grad.is_sparse:
                return True
    return False


@final
class FusedStep:
    """Requests the fused kernel during each step, then clears the gradients.

    torch has such kernels for the CPU, too, but uses them only on request. The kernel is requested
    for one step at a time, so the optimizer's settings and its saved state stay as the user made
    them.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def __call__(self) -> None:
        """Take one step."""
        optimizer = self._optimizer
        if _has_sparse_gradient(optimizer):
            optimizer.step()  # torch has no fused kernel for sparse gradients
            optimizer.zero_grad()
            return
        place_step_counts(optimizer, fused=True)
        before = [group["fused"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["fused"] = True
        try:
            optimizer.step()
        finally:
            for group, value in zip(optimizer.param_groups, before, strict=True):
                group["fused"] = value
        optimizer.zero_grad()


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_LAYERS = (
    *_CONVOLUTIONS,
    *(nn.BatchNorm2d, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Identity),
)
"""Layers that compute the same in any memory layout, up to rounding. Dropout draws in its order."""


@final
class ChannelsLast:
    """A context in which rows of image layers of a model compute with channels innermost.

    Convolutions of the CPU and of tensor cores are faster on such values. A value takes this layout
    before a row of torch's own layers in an ``nn.Sequential`` and the usual one after it. So code
    of the user meets the usual layout only: weights, gradients, and what the row returns have it.

    Args:
        model: May be such a row, or contain some.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._changed: list[nn.Sequential] = []

    def __enter__(self) -> None:
        """Let the rows compute in this way."""
        self._changed = rows_of_layers(self._model)
        for one in self._changed:
            vars(one)["forward"] = partial(_forward, one)

    def __exit__(self, *_: object) -> None:
        """Let them compute as usual."""
        for one in self._changed:
            del vars(one)["forward"]


def rows_of_layers(model: nn.Module) -> list[nn.Sequential]:
    """Return the parts of a model that contain a row of image layers."""
    return [
        one
        for one in model.modules()
        if type(one) is nn.Sequential
        and "forward" not in vars(one)
        and any(len(row) > 1 for row in _rows(one))
    ]


def _rows(layers: nn.Sequential) -> Iterator[list[nn.Module]]:
    """Divide layers into rows that begin with a convolution, and single ones."""
    row: list[nn.Module] = []
    for layer in layers:
        if row and type(layer) in _LAYERS:
            row.append(layer)
            continue
        if row:
            yield row
        row = [layer]
        if type(layer) not in _CONVOLUTIONS:
            yield row
            row = []
    if row:
        yield row


def _forward(layers: nn.Sequential, x: Any) -> Any:
    """Compute what ``nn.Sequential`` computes, layer by layer."""
    suits = not _is_watched(layers) and all(p.is_contiguous() for p in layers.parameters())
    for row in _rows(layers):
        inside = suits and len(row) > 1 and type(x) is Tensor and x.dim() == 4 and x.is_contiguous()
        if inside:
            x = x.contiguous(memory_format=torch.channels_last)
        for layer in row:
            x = layer(x)
        if inside:
            x = x.contiguous()
    return x


def _is_watched(layers: nn.Module) -> bool:
    """Whether code of the user could see values between two layers."""
    modes = torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
    return bool(modes) or torch.compiler.is_compiling() or has_hooks(layers)


def has_hooks(model: nn.Module) -> bool:
    """Whether a module, a parameter or all modules of the process have hooks."""
    if any(getattr(torch_modules, name) for name in _GLOBAL_HOOKS):
        return True
    if any(getattr(module, name) for module in model.modules() for name in _HOOKS):
        return True
    return any(
        parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
        for parameter in model.parameters()
    )


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether an optimizer, or all optimizers of the process, have hooks."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(own or _global_optimizer_pre_hooks or _global_optimizer_post_hooks)


_PRECISION = ("mkldnn", "matmul")
_TOLERANCE = 1e-5
"""Largest relative error of a float32 product; bfloat16 has 2e-3, TF32 3e-4."""

MEDIUM = (384, 768, 768)
"""Rows, length of the sums and columns of a usual product."""

# Sizes for which libraries choose other kernels: also one row, odd numbers, many short sums, few
# long sums.
_SIZES = (MEDIUM, (1, 512, 512), (33, 65, 129), (1024, 32, 128), (64, 4096, 64))

_routing_lock = Lock()
_routing_users = 0
_routing_before = ""


@contextmanager
def routed() -> Iterator[None]:
    """Send float32 matrix products of this process through oneDNN inside the context.

    torch multiplies with MKL. If the program allows a lower internal precision, torch uses oneDNN
    instead. Most often oneDNN still computes in full float32, and can be twice as fast as MKL, or
    slower.

    The setting belongs to torch and holds for the whole process, so it is restored before other
    code runs. Several threads may use it at once.
    """
    global _routing_users, _routing_before
    with _routing_lock:
        if _routing_users == 0:
            _routing_before = torch._C._get_fp32_precision_getter(*_PRECISION)
            torch._C._set_fp32_precision_setter(*_PRECISION, "bf16")
        _routing_users += 1
    try:
        yield
    finally:
        with _routing_lock:
            _routing_users -= 1
            if _routing_users == 0:
                torch._C._set_fp32_precision_setter(*_PRECISION, _routing_before)


def routed_product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply two matrices through oneDNN."""
    with routed():
        return left @ right


@functools.cache
def onednn_refusal() -> str:
    """Return why this process must not multiply through oneDNN; empty if it may.

    Some processors have units for low precision, which oneDNN may use. So the error against float64
    decides, not the features that a processor reports.
    """
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
