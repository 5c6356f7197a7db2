"""The layers of torch that a rewrite may call in another way, and when it may.

A rewrite calls a layer with more rows at once, less often, or not at all. Nobody must be able to
notice: so the layer is exactly a class listed here, no hook sees its calls, and it draws no random
numbers. All of this is asked again at every call, because layers can be replaced and changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from flodl.graph.routing import Reshape, StateAdd

_ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
    nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid,
    nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink,
)  # fmt: skip
_DROPOUTS: tuple[type[nn.Module], ...] = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
)  # fmt: skip
_LAST_DIMENSIONS: tuple[type[nn.Module], ...] = (nn.LayerNorm, nn.RMSNorm)
_OTHERS: tuple[type[nn.Module], ...] = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.MaxPool1d, nn.MaxPool2d, nn.Bilinear, nn.Flatten, nn.GroupNorm, nn.LogSoftmax, nn.Softmax,
    nn.Unflatten, Reshape, StateAdd,
)  # fmt: skip

_KNOWN: tuple[type[nn.Module], ...] = (
    nn.Linear, nn.Embedding, nn.Sequential, nn.ModuleList,
    *_ELEMENTWISE, *_DROPOUTS, *_LAST_DIMENSIONS, *_OTHERS,
)  # fmt: skip

_FORWARDS: dict[type[nn.Module], Any] = {
    cls: cls.forward
    for cls in _KNOWN
}  # fmt: skip
"""The forward of every known class: a class whose forward was replaced is not known any more."""


def unusual() -> str:
    """Return why no rewrite may be used in this call; empty if nothing is unusual about it."""
    if torch.compiler.is_compiling():
        return "a compiler traces the graph"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit traces the graph"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func runs the graph"
    if torch._C._is_any_autocast_enabled():
        return "autocast is on"
    every = torch_modules
    if (
        every._global_forward_hooks
        or every._global_forward_pre_hooks
        or every._global_backward_hooks
        or every._global_backward_pre_hooks
    ):
        return "all modules have hooks"
    return ""


def unhooked(module: nn.Module) -> bool:
    """Whether nothing else than the class of a module decides about its calls."""
    own = module.__dict__
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or own.get("_compiled_call_impl")
        or "forward" in own
    )


def refusal(module: nn.Module) -> str:
    """Return why calls of a module may not be changed; empty if they may. Looks at no child."""
    cls = type(module)
    if cls.forward is not _FORWARDS.get(cls):
        return f"{cls.__name__} is not a layer that it knows"
    if not unhooked(module):
        return f"{cls.__name__} has hooks or a forward of its own"
    for parameter in module._parameters.values():
        if parameter is not None and (reason := _own_ways(parameter)):
            return f"a parameter of {cls.__name__} {reason}"
    return ""


def _own_ways(parameter: Tensor) -> str:
    if type(parameter) not in (nn.Parameter, Tensor):
        return f"is a {type(parameter).__name__}"
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        return "has hooks"
    return ""


def is_elementwise(module: nn.Module, *, own_input: bool = False) -> bool:
    """Whether a known layer works element by element.

    Args:
        module: The layer.
        own_input: Whether it may write into its input, because nothing else reads that.
    """
    return isinstance(module, _ELEMENTWISE) and (own_input or not getattr(module, "inplace", False))


def settings(module: nn.Module) -> tuple[object, ...]:
    """The settings of a layer that works element by element: equal ones compute the same."""
    return (type(module), *(getattr(module, name) for name in _constants(module)))


def _constants(module: nn.Module) -> Iterable[str]:
    return getattr(type(module), "__constants__", ())


def is_silent(module: nn.Module) -> bool:
    """Whether a module is a dropout that drops nothing now."""
    return isinstance(module, _DROPOUTS) and not (module.training and getattr(module, "p", True))


def impurity(module: nn.Module) -> str:
    """Return why a module may compute something else when it is called again; empty if never.

    A pure module also leaves its input as it is.
    """
    if reason := refusal(module):
        return reason
    if isinstance(module, nn.Sequential):
        return next(filter(None, map(impurity, module)), "")
    if isinstance(module, nn.Embedding):
        return "an Embedding with max_norm changes its weights" if module.max_norm else ""
    if isinstance(module, _DROPOUTS) and not is_silent(module):
        return "dropout draws random numbers"
    if getattr(module, "inplace", False):
        return f"{type(module).__name__} writes into its input"
    return ""


def mixes_rows(module: nn.Module, dims: int) -> str:
    """Return why a row of a module's output may depend on other rows of its input; empty if not.

    Args:
        module: Called with rows ``[N, ...]``.
        dims: Number of dimensions of its input, the rows included.
    """
    if reason := refusal(module):
        return reason
    if isinstance(module, nn.Sequential):
        return next(filter(None, (mixes_rows(one, dims) for one in module)), "")
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        wide = len(module.normalized_shape) >= dims
        return f"{type(module).__name__} normalizes over the rows" if wide else ""
    if isinstance(module, nn.Linear):
        return "" if dims >= 2 else "Linear takes the rows as features"
    if is_elementwise(module) or is_silent(module):
        return ""
    if isinstance(module, _DROPOUTS):
        return "dropout draws random numbers"
    return f"{type(module).__name__} may mix rows"


def shares_memory(module: nn.Module) -> bool:
    """Whether the output of a known layer may be its input, or a view of it."""
    if isinstance(module, nn.Sequential):
        return all(map(shares_memory, module))
    return isinstance(
        module, (nn.Identity, nn.Flatten, nn.Unflatten, Reshape, StateAdd, *_DROPOUTS)
    )
