"""The module behind a loop, and the functions of sums and maps.

A loop is registered like other modules (``loop_2.body``) and runs through ``__call__``. Its body
is looked up at each call, so a replaced body takes effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import Tensor, nn

from flodl.graph.modules import LoopBody, TraceEmit, Traces
from flodl.graph.rows import HaltingRows, done_rows, first_row, refuse_capture, spread
from flodl.graph.topology import Loop, RefStyle
from flodl.torch_features import DIFFERENTIATES_LOOPS, is_exporting

Refs = Mapping[str, Tensor]


class LoopTraces(NamedTuple):
    """The traces of one run of a loop.

    Attributes:
        published: Values that its body published, by name.
        returned: Results of the body's ``trace()``, one per iteration with a result.
        halts: Raw outputs of the condition, one per test.
    """

    published: Traces
    returned: list[Tensor]
    halts: list[Tensor]


def first_tensor(value: object, node_id: str) -> Tensor:
    """Return the tensor in a module's output: the output, or the first item of a tuple or list.

    Raises:
        TypeError: The output is something else; the message names the node and the type.
    """
    if isinstance(value, Tensor):
        return value
    # Older compilers of torch cannot trace a union of types.
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], Tensor):
        return value[0]
    raise TypeError(
        f"node {node_id} returned {type(value).__name__}; a node returns a tensor, or a tuple or "
        "list whose first element is one: wrap the module in a function that picks it"
    )


def call_with(module: nn.Module, x: Tensor, refs: Refs | None, style: RefStyle | None) -> Any:
    """Call a module with its references in the style that it expects."""
    if style is None or refs is None:
        return module(x)
    if style is RefStyle.METHOD:
        return cast("Any", module).forward_named(x, refs)
    if style is RefStyle.PORTS:
        return module(x, **refs)
    return module(x, refs)


class LoopNode(nn.Module):
    """Feeds a body its own output; gradients flow through all iterations (BPTT, Werbos 1990).

    Args:
        body: Computes the next state from the state, in the same shape.
        cond: Computes a tensor from the state; a row is done when all of its elements are > 0, and
            the loop stops when all rows are. None for a loop of fixed length.
        operation: Kind and limit.
        node_id: The node, for messages.
    """

    def __init__(
        self, body: nn.Module, cond: nn.Module | None, operation: Loop, node_id: str
    ) -> None:
        super().__init__()
        self.body = body
        self.cond = cond
        self.operation = operation
        self.node_id = node_id

    def forward(self, x: Tensor, refs: Refs | None = None) -> tuple[Tensor, LoopTraces]:
        """Run the loop.

        Args:
            x: The first state.
            refs: Tag -> tagged value, the same in every iteration.

        Returns:
            The last state and the traces.
        """
        traces = LoopTraces({}, [], [])
        return self.run(self._step(self.body, refs, traces), x, traces)

    def run(
        self, step: Callable[[Tensor], Any], x: Tensor, traces: LoopTraces
    ) -> tuple[Tensor, LoopTraces]:
        """Run the loop with a function that computes the same as the body.

        Args:
            step: From a state to the next one.
            x: The first state.
            traces: Takes what the loop records.
        """
        reset(self.body)
        if torch.compiler.is_compiling() and self._stays_a_loop():
            return self._captured(step, x), traces
        iterations: list[int] = []
        try:
            return self._iterate(step, x, traces, iterations), traces
        except Exception as error:
            error.add_note(f"in {self.node_id}, loop iteration {len(iterations)}")
            raise

    def _stays_a_loop(self) -> bool:
        """Whether a compiler gets the loop as a loop, and not one iteration after the other."""
        if self.operation.kind == "for" or self.leaves_traces:
            return False
        return DIFFERENTIATES_LOOPS or is_exporting()

    @property
    def leaves_traces(self) -> bool:
        """Whether the body records a value in every iteration."""
        return isinstance(self.body, LoopBody) or _returns_traces(self.body)

    def _iterate(
        self, step: Callable[[Tensor], Any], x: Tensor, traces: LoopTraces, done: list[int]
    ) -> Tensor:
        kind, limit = self.operation.kind, self.operation.limit
        rows = None if kind == "for" or self.operation.batch else HaltingRows(self.node_id)
        for iteration in range(limit):
            if kind == "while" or (kind == "until" and iteration):
                signal = self._signal(x)
                traces.halts.append(signal)
                refuse_capture(x, self.node_id)
                if rows.all_done(signal, x) if rows else bool((signal > 0).all()):
                    break
            state = step(rows.seen(x) if rows else x)
            if type(state) is not Tensor:
                state = first_tensor(state, self.node_id)
            x = rows.advanced(x, state) if rows else state
            done.append(iteration)
        return x

    def _step(
        self, body: nn.Module, refs: Refs | None, traces: LoopTraces
    ) -> Callable[[Tensor], Any]:
        """The body as a function of the state alone; the body itself if that is enough."""
        step: Callable[[Tensor], Any] = body
        if isinstance(body, LoopBody):
            step = _publishing(body, refs or {}, TraceEmit(traces.published))
        elif refs is not None:
            style = self.operation.style
            step = lambda x: call_with(body, x, refs, style)  # noqa: E731 - shorter than a def
        return _recording(step, body, traces.returned) if _returns_traces(body) else step

    def _signal(self, x: Tensor) -> Tensor:
        signal = cast("nn.Module", self.cond)(x)
        return signal if type(signal) is Tensor else first_tensor(signal, f"{self.node_id}.cond")

    def _captured(self, step: Callable[[Tensor], Any], x: Tensor) -> Tensor:
        """The loop in torch's own operators, which a compiler keeps as a loop.

        While a compiler traces, a condition has no value yet.
        """
        from torch._higher_order_ops.while_loop import while_loop

        operation, node = self.operation, self.node_id

        def done_at(state: Tensor) -> Tensor:
            signal = self._signal(state)
            return (signal > 0).all() if operation.batch else done_rows(signal, state, node)

        def unfinished(count: Tensor, done: Tensor, _seen: Tensor, _state: Tensor) -> Tensor:
            # The first iteration runs without a test: torch 2.13 differentiates a loop that never
            # ran as if it had run once.
            return (count == 0) | ((count < operation.limit) & ~done.all())

        def advance(count: Tensor, done: Tensor, seen: Tensor, state: Tensor) -> tuple[Tensor, ...]:
            seen = torch.where(spread(done, state), seen, state)
            after = first_tensor(step(seen), node)
            state = torch.where(spread(done, state), state, after)
            return count + 1, done | done_at(state), seen, state

        def iterate(x: Tensor, done: Tensor) -> Tensor:
            count = torch.zeros((), dtype=torch.int64, device=x.device)
            seen = first_row(~done, x) if done.dim() else x
            # The operators refuse inputs and outputs that share memory.
            start = (count, done.clone(), seen.clone(), x)
            return cast("Tensor", cast("Any", while_loop)(unfinished, advance, start)[-1])

        if operation.kind == "until":
            done = x.new_zeros(() if operation.batch else x.shape[:1], dtype=torch.bool)
            return iterate(x, done)
        done = done_at(x)
        return cast("Tensor", torch.cond(done.all(), lambda x, _: x.clone(), iterate, (x, done)))


def _publishing(body: LoopBody, refs: Refs, emit: TraceEmit) -> Callable[[Tensor], Any]:
    # A body that overrides forward cannot take an emitter there.
    direct = type(body).forward is not LoopBody.forward

    def step(x: Tensor) -> Any:
        emit.next_step()
        return body.step(x, refs, emit) if direct else body(x, refs, emit)

    return step


def _returns_traces(body: nn.Module) -> bool:
    return callable(getattr(type(body), "trace", None))


def _recording(
    step: Callable[[Tensor], Any], body: nn.Module, returned: list[Tensor]
) -> Callable[[Tensor], Any]:
    def recorded(x: Tensor) -> Any:
        x = step(x)
        value = cast("Any", body).trace()
        if value is not None:
            returned.append(value)
        return x

    return recorded


def reset(module: nn.Module) -> None:
    """Call a module's ``reset()`` if its class defines one."""
    # On the class: a missing attribute of an instance is searched slowly in torch's registries.
    if callable(getattr(type(module), "reset", None)):
        cast("Any", module).reset()


def refuse_shapes(node_id: str, *values: Tensor) -> NoReturn:
    """Refuse to add values of different shapes.

    Raises:
        ValueError: Always; the message names the node and the shapes.
    """
    shapes = " with ".join(str(list(value.shape)) for value in values)
    raise ValueError(
        f"{node_id} adds {shapes}: the shapes must be equal; pass broadcast=True to this step to "
        "broadcast them"
    )


def map_each(body: nn.Module, x: Tensor, node_id: str) -> Tensor:
    """Run ``body`` on slices ``[1, ...]`` of the first dimension and join the results along it.

    An empty input is returned unchanged.
    """
    if x.shape[0] == 0:
        return x
    return torch.cat([first_tensor(body(part), node_id) for part in torch.split(x, 1)])


def map_whole(body: nn.Module, x: Tensor, node_id: str) -> Tensor:
    """Run ``body`` once on all slices; an empty input is returned unchanged."""
    return x if x.shape[0] == 0 else first_tensor(body(x), node_id)


def map_slices(body: nn.Module, x: Tensor, pieces: int, node_id: str) -> Tensor:
    """Cut the last dimension into pieces, run ``body`` on all of them and join the results.

    Args:
        body: Maps ``[N, D / pieces]`` to ``[N, out]``.
        x: ``[..., D]``, at least two dimensions.
        pieces: Number of pieces.
        node_id: The node, for messages.

    Returns:
        ``[..., pieces * out]``.

    Raises:
        ValueError: ``x`` has fewer than two dimensions, or D is not a multiple of ``pieces``.
    """
    *lead, width = x.shape
    if not lead or width % pieces:
        raise ValueError(
            f"slices({pieces}) needs [..., D] with two dimensions or more and D divisible by "
            f"{pieces}, got {list(x.shape)}"
        )
    result = first_tensor(body(x.reshape(math.prod(lead) * pieces, width // pieces)), node_id)
    return result.reshape(*lead, pieces * result.shape[-1])
