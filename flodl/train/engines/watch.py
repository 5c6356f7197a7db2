"""Watching a step's calls of torch, and hiding channels-last layout from code that depends on it.

If a weight is in channels-last layout, every value computed from it has that layout, too. Most
functions give the same result. Some do not: ``view`` raises, ``as_strided`` reads other elements,
and ``dropout`` draws its mask in memory order. :class:`StepWatch` sees each call before it runs, in
the live step itself. No function is called twice.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ASKING = _names(
    """dim ndim size shape dtype device layout requires_grad is_leaf numel nelement len __len__
    grad_fn output_nr is_cuda is_sparse is_quantized is_meta is_nested is_complex is_floating_point
    requires_grad_ __bool__ __hash__ element_size itemsize names is_mkldnn is_mps is_xpu is_cpu
    is_inference is_signed get_device _version __format__ __repr__"""
)
"""Calls that do not depend on the memory layout."""

_CONVOLUTIONS = _names("conv2d conv_transpose2d")
"""The only functions that may receive a weight in channels-last layout."""

_ALIASING = _names("reshape reshape_as flatten contiguous ravel unflatten")
"""Their result shares memory with a contiguous value, but not with a channels-last one."""

_INDIFFERENT = _CONVOLUTIONS | _names(
    """conv1d conv3d linear bilinear matmul mm bmm addmm baddbmm einsum embedding
    batch_norm group_norm instance_norm layer_norm rms_norm local_response_norm normalize
    relu relu_ relu6 leaky_relu leaky_relu_ prelu elu elu_ selu celu gelu silu mish sigmoid tanh
    hardtanh hardtanh_ hardswish hardsigmoid softplus softsign logsigmoid glu softmax log_softmax
    softmin threshold sigmoid_ tanh_
    max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d lp_pool2d boolean_dispatch
    interpolate upsample pad pixel_shuffle pixel_unshuffle grid_sample affine_grid
    dropout2d feature_dropout feature_alpha_dropout
    add add_ sub sub_ mul mul_ div div_ true_divide __add__ __radd__ __iadd__ __sub__ __rsub__
    __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__ __pow__ __rpow__
    __neg__ __abs__ __and__ __or__ __invert__ __matmul__ __rmatmul__ __lt__ __le__ __gt__ __ge__
    __eq__ __ne__ lt le gt ge eq ne neg abs square pow sqrt rsqrt exp log log1p log2 expm1 sin cos
    clamp clamp_ clamp_min clamp_max clip floor ceil round sign erf reciprocal lerp addcmul addcdiv
    rsub maximum minimum where masked_fill nan_to_num isnan isinf isfinite logical_not logical_and
    logical_or
    mean sum prod amax amin max min std var var_mean std_mean logsumexp norm any all
    cat concat concatenate stack chunk split tensor_split narrow select index_select squeeze
    unsqueeze permute transpose movedim swapaxes expand expand_as repeat flip roll unbind
    __getitem__ tile T mT
    detach clone to float double half bfloat16 type_as cpu cuda item tolist __float__ __int__
    backward zero_ fill_ copy_ tril triu
    cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits kl_div cosine_similarity cosine_embedding_loss"""
)
"""Functions that compute the same in any memory layout, up to rounding."""


@final
class StepWatch(TorchFunctionMode):
    """Sees the calls of torch between ``with watch:`` and its end, on one thread.

    If weights have the usual layout, it only observes; :attr:`reason` tells why they must keep it.
    If weights are in channels-last layout, it protects code that depends on the layout: it makes
    the arguments of such a call contiguous first.

    Args:
        restore: Restores the usual layout of all weights at once.
    """

    def __init__(self, restore: Callable[[], None]) -> None:
        super().__init__()
        self.reason = ""
        self._weights: set[int] = set()
        self._used: set[int] = set()
        self._restore = restore
        self._made: list[weakref.ref[Tensor]] = []
        self._guards = False

    def begin_step(self, weights: Iterable[nn.Parameter], *, guards: bool) -> None:
        """Begin a step.

        Args:
            weights: The weights that may be in channels-last layout.
            guards: Whether they are in that layout in this step.
        """
        self._weights = {id(weight) for weight in weights}
        self._guards = guards
        self._made.clear()

    def end_step(self) -> None:
        """Look for values that outlive the step, because other code may read them."""
        for reference in self._made:
            value = reference()
            if value is None or value.dim() < 3:
                continue
            if not self._guards:
                self.refuse("a value of the step outlives it")
            elif not value.is_contiguous():
                self.refuse("a value of the step outlives it")
                _straighten(value)
        self._made.clear()

    def unused(self, weights: Iterable[nn.Parameter]) -> bool:
        """Whether some weights were not seen in a convolution, so they are used elsewhere."""
        return any(id(weight) not in self._used for weight in weights if weight.requires_grad)

    def look_back(self, loss: Tensor) -> None:
        """Search the history of a loss for functions of the user."""
        if function := foreign_function(loss):
            self.refuse(f"the step uses {function}")

    def refuse(self, reason: str) -> None:
        """Record a reason; only the first one is kept."""
        self.reason = self.reason or reason

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Check a call, run it, and record its result."""
        name = _name_of(func)
        kwargs = kwargs or {}
        if name in _ASKING:
            return func(*args, **kwargs)
        tensors = tensors_in(args, kwargs)
        if not tensors:
            return func(*args, **kwargs)
        if self._weights:
            self._look_at_weights(name, tensors)
        if name == "backward":
            self.look_back(tensors[0])
        result = self._carry_out(name, tensors, func, args, kwargs)
        for value in (result,) if isinstance(result, Tensor) else tensors_in((result,), None):
            if value.dim() >= 2:
                self._made.append(weakref.ref(value))
        return result

    def _carry_out(
        self, name: str, tensors: list[Tensor], func: Any, args: Any, kwargs: Any
    ) -> Any:
        if name in _INDIFFERENT and "memory_format" not in kwargs:
            return func(*args, **kwargs)
        reason = f"the step calls {name}, which depends on the layout"
        if not self._guards:
            if name not in _ALIASING and any(tensor.dim() >= 3 for tensor in tensors):
                self.refuse(reason)
            return func(*args, **kwargs)
        others = [tensor for tensor in tensors if _lies_otherwise(tensor)]
        if others and name not in _ALIASING:
            self.refuse(reason)
        views = [(one, one.data) for one in others if one._is_view()]
        for tensor in others:
            if not tensor._is_view() or name not in _ALIASING:
                _straighten(tensor)
        result = func(*args, **kwargs)
        with torch.no_grad():
            for view, memory in views:  # writes into a view must reach its base
                if view.data_ptr() != memory.data_ptr():
                    memory.copy_(view.data)
                    view.data = memory
        return result

    def _look_at_weights(self, name: str, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if id(tensor) not in self._weights:
                continue
            if name in _CONVOLUTIONS:
                self._used.add(id(tensor))
                continue
            self.refuse(f"the step reads a weight ({name})")
            if self._guards:
                self._restore()


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any] | None) -> list[Tensor]:
    """Return the tensors among the arguments of a call, including those in lists."""
    found: list[Tensor] = []
    for value in (*args, *(kwargs.values() if kwargs else ())):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [one for one in value if isinstance(one, Tensor)]
    return found


def _name_of(func: Any) -> str:
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        # Setting an attribute is never harmless.
        return owner if name == "__get__" else f"{owner}="
    return str(name)


def _lies_otherwise(tensor: Tensor) -> bool:
    """Whether a value may be in channels-last layout because a weight is."""
    if tensor.layout != torch.strided or tensor.dim() < 2 or tensor.is_contiguous():
        return False
    base = tensor._base if tensor._is_view() else None
    return base is None or (base.layout == torch.strided and not base.is_contiguous())


def _straighten(tensor: Tensor) -> None:
    """Make a value contiguous, in place, so that it shares memory as in the usual layout."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        tensor.data = tensor.data.contiguous()


def foreign_function(loss: Tensor) -> str:
    """Return the name of a function in the history of a loss that is not torch's own, or nothing.

    The watch cannot see what such a function does with memory, now or in the backward pass.
    """
    waiting: list[Any] = [loss.grad_fn]
    known = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return type(node).__name__
        name = str(node.name())
        if "CppNode" in name:
            return name
        waiting += [function for function, _ in node.next_functions]
    return ""


def compiled_frames() -> int:
    """Return how many functions torch.compile has processed in this process."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return sum(compiler.counters["frames"].values()) if compiler is not None else 0


def watching_refusal(model: nn.Module, frames: int) -> str:
    """Return why the steps of a model should not be watched; empty if no other code would notice.

    Args:
        model: The model that is trained.
        frames: :func:`compiled_frames` before the training's first step.
    """
    if torch._C._len_torch_function_stack():
        return "the program watches calls of torch itself"
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return "a part of the model is scripted"
    if any(type(parameter) not in (nn.Parameter, Tensor) for parameter in model.parameters()):
        return "parameters are of a class of their own"
    if compiled_frames() != frames or any(type(m) in _compiled() for m in model.modules()):
        return "the program compiles itself"
    return ""


def _compiled() -> tuple[type, ...]:
    """Return the class that torch.compile gives to a module, if the compiler is loaded."""
    frame = sys.modules.get("torch._dynamo.eval_frame")
    return () if frame is None else (frame.OptimizedModule,)
