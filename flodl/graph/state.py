"""Values that a graph keeps between calls: carried state, captured tags and traces.

Forward references make a graph recurrent: a call reads the value that a tag had in the previous
call. Several forwards before one backward give backpropagation through time over all of them. A
backward detaches the carried values from their history (truncated BPTT, Williams & Peng 1990).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from flodl.errors import StateError
from flodl.graph.base import GraphBase
from flodl.graph.codegen import State
from flodl.graph.nodes import LoopTraces, reset

StatePolicy = Literal["auto", "manual"]

_CUDA: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]

_LONG_CHAIN = 256
"""Forwards without a backward after which a warning is given: it was probably forgotten."""


class BackwardSeen:
    """Set by the first backward that reaches a tensor of the graph; it does not know the graph."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = False

    def mark(self, _grad: Tensor) -> None:
        """Set the value; used as a hook."""
        self.value = True


class Captures:
    """Values left by forwards; a copy or a pickle of it is empty.

    A plain object with slots, because writing an attribute of a module takes a microsecond.

    Attributes:
        tags: Value of every kept tag, in declaration order; None for an absent optional input.
            All are None before and during a forward.
        traces: The traces of every loop, in building order; None as for tags.
        state: Carried value of every state tag; None if there is none yet.
        pending_step: Whether a forward ran since the last ``end_step``.
        backward: Whether a backward has reached a tensor that the carried values depend on.
        hooked: Whether hooks watch a call since the last detach for such a backward.
        linked: Whether all values that entered the last call depend on a watched call.
        chain: Forwards recorded for autograd since the last backward or detach.
    """

    __slots__ = (
        "backward", "chain", "hooked", "linked", "pending_step", "state", "tags", "traces",
        "warned",
    )  # fmt: skip

    def __init__(self, slots: int = 0) -> None:
        self.tags: tuple[Tensor | None, ...] | None = None
        self.traces: tuple[LoopTraces, ...] | None = None
        self.state: State = (None,) * slots
        self.pending_step = False
        self.warned = False
        self._begin_history()

    def __reduce__(self) -> tuple[type[Captures], tuple[int]]:
        return Captures, (len(self.state),)

    def detach(self) -> None:
        """Keep the values and drop their autograd graph."""
        if self.tags is not None:
            self.tags = tuple(None if v is None else v.detach() for v in self.tags)
        if self.traces is not None:
            self.traces = tuple(_detached(traces) for traces in self.traces)
        self.state = tuple(None if value is None else value.detach() for value in self.state)
        self._begin_history()

    def values(self) -> Iterator[Tensor | None]:
        """All tensors at which a backward could start, except the output."""
        yield from self.state
        yield from self.tags or ()
        for traces in self.traces or ():
            yield from (value for values in traces.published.values() for value in values)
            yield from traces.returned
            yield from traces.halts

    def forget_state(self) -> None:
        """Drop the carried values."""
        self.state = (None,) * len(self.state)
        self._begin_history()

    def _begin_history(self) -> None:
        # A new object: a late backward through the old history must not mark the new one.
        self.backward = BackwardSeen()
        self.hooked = self.linked = False
        self.chain = 0

    def copied(self) -> Captures:
        """Return captures that start with copies of the carried values."""
        other = Captures(len(self.state))
        other.state = tuple(None if v is None else v.detach().clone() for v in self.state)
        return other


def _detached(traces: LoopTraces) -> LoopTraces:
    return LoopTraces(
        {name: [value.detach() for value in values] for name, values in traces.published.items()},
        [value.detach() for value in traces.returned],
        [value.detach() for value in traces.halts],
    )


class Stateful(GraphBase):
    """The part of a graph's interface for values carried from call to call."""

    _captures: Captures
    _state_policy: StatePolicy = "auto"

    @property
    def state_policy(self) -> StatePolicy:
        """When carried state is detached from its history.

        ``"auto"``: the first forward after a backward detaches it; no ``end_step`` is needed.
        ``"manual"``: only ``end_step``, ``step`` and ``detach_state`` detach it. A forward that
        would use a history already consumed by a backward raises ``StateError``. While a compiler
        traces the graph with its shell (``torch.compile(graph)``), state behaves as with
        ``"manual"``; ``graph.compile()`` keeps the policy.
        """
        return self._state_policy

    @state_policy.setter
    def state_policy(self, policy: StatePolicy) -> None:
        if policy not in ("auto", "manual"):
            raise ValueError(f"state_policy is 'auto' or 'manual', not {policy!r}")
        self._state_policy = policy

    def has_state(self) -> bool:
        """Whether this graph, or one nested in it, carries values from call to call."""
        for module in self.modules():
            if isinstance(module, Stateful) and module.topology.state_tags:
                return True
        return False

    def reset_state(self) -> None:
        """Delete all carried values: the next call starts a new sequence.

        Includes nested graphs, and calls ``reset()`` of every module that defines it.
        """
        for module in self.modules():
            if isinstance(module, Stateful):
                module._captures.forget_state()
            else:
                reset(module)

    def detach_state(self) -> None:
        """Keep the values of the last forward and detach them from their history.

        Includes carried values, tagged values and loop traces, nested graphs, and every module
        that defines ``detach_state``.
        """
        self._captures.detach()
        for module in outermost_stateful(self):
            module.detach_state()

    @contextmanager
    def preserve_state(self) -> Iterator[Self]:
        """Run a block, such as a validation, on a copy of the carried state.

        Afterwards state, tags and traces are as before, including their history. Nested graphs are
        included. State that other modules keep themselves is not protected.
        """
        kept = [(graph, graph._captures) for graph in self._graphs()]
        for graph, captures in kept:
            graph._captures = captures.copied()
        try:
            yield self
        finally:
            for graph, captures in kept:
                graph._captures = captures

    def carried_state(self) -> tuple[Tensor | None, ...]:
        """Return the values this graph, without nested ones, carries to its next call, detached.

        One tensor per state tag in the order of their declaration, None if there is none yet.
        """
        return tuple(None if v is None else v.detach() for v in self._captures.state)

    def set_carried_state(self, values: Sequence[Tensor | None]) -> None:
        """Start the next call from these values, which :meth:`carried_state` returned.

        Raises:
            ValueError: The number of values is not the number of state tags.
        """
        if len(values) != len(self._captures.state):
            raise ValueError(
                f"{len(values)} values for {len(self._captures.state)} state tags: give one each"
            )
        self._captures.forget_state()
        self._captures.state = tuple(values)

    def _graphs(self) -> list[Stateful]:
        return [module for module in self.modules() if isinstance(module, Stateful)]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        captures = self._captures
        with torch.no_grad():
            captures.state = tuple(None if v is None else fn(v) for v in captures.state)
        return self

    def _prepare_state(self) -> None:
        """Prepare a forward with carried state, here or below: detach it, or raise if it must fail.

        A graph also watches for its nested graphs. Their carried values may depend on layers of
        this graph, and a backward through those need not reach the nested graph itself.
        """
        if torch._C._current_graph_task_id() != -1:
            raise StateError(
                f"{self._named()} carries state and was called again during a backward: activation "
                "checkpointing would advance its state twice; checkpoint a module inside it instead"
            )
        # Without a driver, a build of torch for CUDA raises when it is asked about a stream.
        used = _CUDA and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if used and torch.cuda.is_current_stream_capturing():
            raise StateError(
                f"{self._named()} carries state, which a CUDA graph would freeze at its first "
                "value; capture a graph without forward references"
            )
        captures = self._captures
        if captures.backward.value:
            if self._state_policy == "auto":
                self.detach_state()
            else:
                self._refuse_used_history()
        captures.linked = captures.hooked and all(
            value is not None and value.requires_grad and not value.is_leaf
            for value in captures.state
        )

    def _watch(self, output: Tensor) -> None:
        """After a forward: hook the returned, captured and carried values to notice a backward.

        A hook takes a tenth of a small step. It is not needed if every returned value depends on
        the carried values: then the hooks of the first call of the history notice the backward.
        """
        captures = self._captures
        if not (captures.linked and self.topology.leads_back):
            self._hook((output, *captures.values()))
        if captures.state and output.requires_grad:
            captures.chain += 1
            if captures.chain == _LONG_CHAIN and not captures.warned:
                self._warn_of_a_long_chain()

    def _hook(self, values: Iterable[Tensor | None]) -> None:
        mark = self._captures.backward.mark
        hooked: list[Tensor] = []
        for value in values:
            # A leaf outlives the call, so its hooks would accumulate.
            if value is None or not value.requires_grad or value.is_leaf:
                continue
            if not any(value is other for other in hooked):
                hooked.append(value)
                value.register_hook(mark)  # type: ignore[no-untyped-call]
        self._captures.hooked |= bool(hooked)

    def _warn_of_a_long_chain(self) -> None:
        self._captures.warned = True
        warnings.warn(
            f"{self._named()} has run {_LONG_CHAIN} times for autograd without a backward or "
            "detach_state(): memory grows with every call; use torch.no_grad() to only look, "
            "or detach_state() to cut the history",
            stacklevel=6,
        )

    def _refuse_used_history(self) -> None:
        for tag, value in zip(self.topology.state_tags, self._captures.state, strict=True):
            if value is not None and value.requires_grad:
                raise StateError(
                    f"the state {tag!r} of {self._named()} still hangs on the history a backward "
                    "has used up: call end_step() (or step(), or detach_state()) after each "
                    'backward, or set state_policy = "auto"'
                )

    def _named(self) -> str:
        return f"graph {self.label!r}" if self.label else "the graph"


def outermost_stateful(module: nn.Module) -> Iterator[Any]:
    """Yield the outermost modules below that define ``detach_state``."""
    for child in module.children():
        if callable(getattr(type(child), "detach_state", None)):
            yield child
        else:
            yield from outermost_stateful(child)
