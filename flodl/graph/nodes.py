"""The modules behind composite nodes (loops, gates, switches), and the functions of a map.

They are registered like other modules (``loop_2.body``, ``gate_3.experts.0``) and run through
``__call__``. Children are looked up at each call, so a replaced child takes effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import Tensor, nn

from flodl.graph.modules import LoopBody, TraceEmit, Traces
from flodl.graph.topology import Gate, Loop, RefStyle, Switch
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
        cond: Computes a tensor from the state; the loop stops when all of its elements are > 0.
            None for a loop of fixed length.
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
        for iteration in range(limit):
            if kind == "while" and self._halts(x, traces):
                break
            x = step(x)
            if type(x) is not Tensor:
                x = first_tensor(x, self.node_id)
            done.append(iteration)
            if kind == "until" and iteration + 1 < limit and self._halts(x, traces):
                break
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

    def _halts(self, x: Tensor, traces: LoopTraces) -> bool:
        signal = self._signal(x)
        traces.halts.append(signal)
        return bool(signal > 0) if signal.numel() == 1 else bool((signal > 0).all())

    def _signal(self, x: Tensor) -> Tensor:
        signal = cast("nn.Module", self.cond)(x)
        return signal if type(signal) is Tensor else first_tensor(signal, f"{self.node_id}.cond")

    def _captured(self, step: Callable[[Tensor], Any], x: Tensor) -> Tensor:
        """The loop in torch's own operators, which a compiler keeps as a loop.

        While a compiler traces, a condition has no value yet.
        """
        from torch._higher_order_ops.while_loop import while_loop

        limit = self.operation.limit

        def unfinished(count: Tensor, state: Tensor) -> Tensor:
            # The first iteration runs without a test: torch 2.13 differentiates a loop that never
            # ran as if it had run once.
            return (count == 0) | ((count < limit) & ~(self._signal(state) > 0).all())

        def advance(count: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            # The operators refuse outputs that share memory with their inputs.
            return count + 1, first_tensor(step(state), self.node_id).clone()

        def iterate(x: Tensor) -> Tensor:
            count = torch.zeros((), dtype=torch.int64, device=x.device)
            return cast("Tensor", cast("Any", while_loop)(unfinished, advance, (count, x))[1])

        if self.operation.kind == "until":
            return iterate(x)
        halted = (self._signal(x) > 0).all()
        return cast("Tensor", torch.cond(halted, torch.clone, iterate, (x,)))


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


def _within(node_id: str, router: nn.Module, part: nn.Module, name: str = "") -> str:
    """Return a note for an exception: the part of a gate or switch that raised it."""
    return f"in {node_id}, {'router' if part is router else name} ({type(part).__name__})"


class GateNode(nn.Module):
    """Runs every expert and adds their outputs, weighted by a router (Jacobs et al. 1991).

    Args:
        router: Computes weights ``[..., N]`` from the stream; they are not normalised here.
        experts: N modules whose outputs have the same shape.
        operation: Number of experts, and how the router takes references.
        node_id: The node, for messages.
    """

    def __init__(
        self, router: nn.Module, experts: Iterable[nn.Module], operation: Gate, node_id: str
    ) -> None:
        super().__init__()
        self.router = router
        self.experts = nn.ModuleList(experts)
        self.operation = operation
        self.node_id = node_id

    def forward(self, x: Tensor, refs: Refs | None = None) -> Tensor:
        """Compute the weighted sum of the experts' outputs.

        Args:
            x: The stream, for the router and all experts.
            refs: Tag -> tagged value, for the router.

        Raises:
            ValueError: The shapes of weights and expert outputs do not match.
        """
        weights = self.weights(x, refs)
        return weigh(weights, self.outputs(x))

    def weights(self, x: Tensor, refs: Refs | None = None) -> Tensor:
        """Call the router."""
        try:
            weights = call_with(self.router, x, refs, self.operation.style)
        except Exception as error:
            error.add_note(_within(self.node_id, self.router, self.router))
            raise
        return first_tensor(weights, f"{self.node_id}.router")

    def outputs(self, x: Tensor) -> list[Tensor]:
        """Call every expert."""
        node = self.node_id
        outputs: list[Tensor] = []
        expert: nn.Module = self.router
        try:
            for expert in self.experts:
                output = expert(x)
                if type(output) is not Tensor:
                    output = first_tensor(output, f"{node}.experts.{len(outputs)}")
                outputs.append(output)
        except Exception as error:
            error.add_note(_within(node, self.router, expert, f"expert {len(outputs)}"))
            raise
        return outputs


def weigh(weights: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """Return ``sum_i weights[..., i] * outputs[i]``.

    Args:
        weights: ``[lead..., N]``, where ``lead`` are the first dimensions of an output: none, some
            or all of them.
        outputs: N tensors of one shape.

    Raises:
        ValueError: The number of outputs is not N, ``lead`` differs, or the output shapes differ.
    """
    shape, lead = outputs[0].shape, weights.shape[:-1]
    if any(output.shape != shape for output in outputs):
        shapes = ", ".join(str(list(output.shape)) for output in outputs)
        raise ValueError(f"the experts of a gate return different shapes: {shapes}")
    if weights.dim() == 0 or weights.shape[-1] != len(outputs):
        raise ValueError(
            f"a gate of {len(outputs)} experts needs weights [..., {len(outputs)}], its router "
            f"returned {list(weights.shape)}"
        )
    if lead != shape[: len(lead)]:
        raise ValueError(
            f"the weights {list(weights.shape)} of a gate must begin like the experts' outputs "
            f"{list(shape)}: one weight per expert for each of the leading dimensions"
        )
    weights = weights.reshape(*lead, *(1 for _ in shape[len(lead) :]), len(outputs))
    # One split and fused multiply-adds need fewer operators than N slices, products and sums.
    first, *others = weights.unbind(-1)
    total = first * outputs[0]
    for weight, output in zip(others, outputs[1:], strict=True):
        total = torch.addcmul(total, weight, output)
    return total


class SwitchNode(nn.Module):
    """Runs the branch that a router chooses once for the whole batch, not for each sample.

    Args:
        router: Computes one number from the stream: the index of the branch.
        branches: Two or more modules.
        operation: Number of branches, and how the router takes references.
        node_id: The node, for messages.
    """

    def __init__(
        self, router: nn.Module, branches: Iterable[nn.Module], operation: Switch, node_id: str
    ) -> None:
        super().__init__()
        self.router = router
        self.branches = nn.ModuleList(branches)
        self.operation = operation
        self.node_id = node_id

    def forward(self, x: Tensor, refs: Refs | None = None) -> Tensor:
        """Choose a branch and run it.

        Args:
            x: The stream, for the router and the branch.
            refs: Tag -> tagged value, for the router.

        Raises:
            ValueError: The router returned several elements, or a negative or non-finite one.
            IndexError: There is no such branch.
        """
        try:
            choice = call_with(self.router, x, refs, self.operation.style)
        except Exception as error:
            error.add_note(_within(self.node_id, self.router, self.router))
            raise
        choice = first_tensor(choice, f"{self.node_id}.router")
        if choice.numel() != 1:
            raise ValueError(
                f"the router of a switch returns one element, this one {list(choice.shape)}: one "
                "branch serves the whole batch"
            )
        branches = list(self.branches)
        if torch.compiler.is_compiling():
            torch._assert_async(
                ((choice >= 0) & (choice < len(branches))).all(),
                f"{self.node_id}: the router named no branch",
            )
            return self._captured(branches, choice.reshape(()), x)
        index = self._index(choice.item())
        try:
            output = branches[index](x)
        except Exception as error:
            error.add_note(_within(self.node_id, self.router, branches[index], f"branch {index}"))
            raise
        return output if type(output) is Tensor else first_tensor(output, self.node_id)

    def _index(self, choice: float) -> int:
        if not math.isfinite(choice) or choice < 0:
            raise ValueError(f"the router of a switch returned {choice}; it names a branch from 0")
        index, count = int(choice), len(self.branches)
        if index >= count:
            raise IndexError(f"the router of a switch chose branch {index}, there are {count}")
        return index

    def _captured(self, branches: list[nn.Module], choice: Tensor, x: Tensor) -> Tensor:
        # While a compiler traces, the index has no value yet: torch's own operator keeps it.
        if len(branches) == 1:
            return self._alone(branches[0], x)
        half = len(branches) // 2
        return cast(
            "Tensor",
            torch.cond(
                choice < half,
                lambda x: self._captured(branches[:half], choice, x),
                lambda x: self._captured(branches[half:], choice - half, x),
                (x,),
            ),
        )

    def _alone(self, branch: nn.Module, x: Tensor) -> Tensor:
        # The operator refuses outputs that share memory with its inputs.
        return first_tensor(branch(x), self.node_id).clone()


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
