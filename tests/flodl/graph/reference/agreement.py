"""A graph and its reference side by side: everything a user can read must be equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.testing import assert_close

from flodl import Graph

from .assembly import Assembly
from .grammar import Call
from .interpreter import Reference
from .parts import Parts, instantiate
from .recipe import Leaf, Recipe

# Both sides do the same operations on the same numbers; a sum or a batched matrix product may
# still be grouped differently, which moves the last bits of a float64.
# Values of a drawn graph may overflow; then both have nan at the same places.
CLOSE = {"rtol": 1e-10, "atol": 1e-12, "equal_nan": True}


def draw_inputs(recipe: Recipe, lead: Sequence[int], seed: int) -> list[Tensor]:
    """Inputs of a graph in float64, ``[*lead, width]`` each; leaves that take gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*lead, width, dtype=torch.float64, generator=generator).requires_grad_()
        for width in recipe.widths
    ]


def weighted(values: Sequence[Tensor]) -> Tensor:
    """A loss in which every element of every value counts differently."""
    return sum(
        (value.flatten() * torch.linspace(-1, 1.3, value.numel(), dtype=torch.float64)).sum()
        for value in values
    )


class Pair:
    """A graph and the reference that runs the same recipe on the same leaves.

    ``run`` is how the graph is called: set it to call a compiled one.

    Args:
        recipe: What both run.
        parts: The leaves; made anew by default.
        graph: A graph made in another way than by the builder, a copy for instance; its nested
            graphs are then not looked into.
        compiled: Whether the graph is compiled: what the loss does not depend on then has
            gradients of zero instead of none. Torch's own dropout returns its input itself where
            it drops nothing; compiled, it returns a copy, which does not require a gradient under
            ``no_grad``. So a recipe with dropout gets plain inputs there.
    """

    def __init__(
        self,
        recipe: Recipe,
        parts: Parts | None = None,
        graph: Graph | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        parts = instantiate(recipe) if parts is None else parts
        assembly = Assembly(parts)
        self.recipe = recipe
        self.graph = assembly.build(recipe) if graph is None else graph
        self.nested = assembly.graphs
        self.reference = Reference(recipe, parts)
        self.run: Callable[..., Tensor] = self.graph
        self.compiled = compiled
        kinds = {module.kind for module in recipe.modules() if isinstance(module, Leaf)}
        self.copies = compiled and "dropout" in kinds
        self.inputs: list[Tensor] = []
        self.idle: set[int] = set()
        self.losses: list[tuple[Tensor, Tensor]] = []

    def call(self, inputs: list[Tensor], *, grad: bool = True, whole: bool = True) -> None:
        """Call both and compare whatever they left; ``whole`` losses use tags and traces, too."""
        before = {slot: player.calls for slot, player in self.reference.players.items()}
        if self.copies and not grad:
            inputs = [value.detach() for value in inputs]
        with torch.set_grad_enabled(grad):
            ours, theirs = self.run(*inputs), self.reference(*inputs)
        assert_close(ours, theirs, **CLOSE)
        players = self.reference.players
        self.idle = {slot for slot, calls in before.items() if players[slot].calls == calls}
        self.compare_observations()
        mine, expected = [ours], [theirs]
        if whole:
            mine += self._observed(ours_instead=True)
            expected += self._observed(ours_instead=False)
        self.inputs += inputs
        self.losses.append((weighted(mine), weighted(expected)))

    def _observed(self, *, ours_instead: bool) -> list[Tensor]:
        """Tags and traces of the last call, which enter the loss, too."""
        graph, reference = self.graph, self.reference
        traces = sorted(reference.traces)
        if not ours_instead:
            return [
                *reference.tags.values(), *(v for name in traces for v in reference.traces[name])
            ]  # fmt: skip
        return [
            *map(graph.tagged, reference.tags), *(v for name in traces for v in graph.traces(name))
        ]  # fmt: skip

    def backward(self) -> None:
        """Differentiate all calls since the last backward, and compare every gradient."""
        ours, theirs = (sum(losses) for losses in zip(*self.losses, strict=True))
        leaves = {f"input {k}": value for k, value in enumerate(self.inputs)}
        leaves.update(self.graph.named_parameters())
        self.losses, self.inputs = [], []
        mine, expected = _gradients(ours, leaves), _gradients(theirs, leaves)
        for name in leaves:
            missing = (mine[name] is None, expected[name] is None)
            if self.compiled and missing == (False, True):
                expected[name] = torch.zeros_like(leaves[name])
            else:
                assert missing[0] == missing[1], f"{name}: no gradient (graph, ref): {missing}"
            if mine[name] is not None:
                assert_close(mine[name], expected[name], msg=lambda m, n=name: f"{n}: {m}", **CLOSE)
        self.reference.after_backward()

    def validate(self, inputs: list[Tensor]) -> None:
        """Call both on the side: what they carry and show is afterwards as it was."""
        players = [self.reference, *self.reference.players.values()]
        kept = [dict(vars(player)) for player in players]
        with self.graph.preserve_state(), torch.no_grad():
            for _ in range(2):
                assert_close(self.run(*inputs), self.reference(*inputs), **CLOSE)
        for player, attributes in zip(players, kept, strict=True):
            vars(player).update(attributes)
        self.compare_observations()

    def compare_observations(self) -> None:
        """Tags and traces, of nested graphs, too.

        What a nested graph left in an earlier call is still there; whether it still hangs on
        gradients then, nobody says.
        """
        _compare(self.graph, self.reference)
        for slot, graph in self.nested.items():
            _compare(graph, self.reference.players[slot], values_only=slot in self.idle)

    def compare_names(self) -> None:
        """Node ids, prefixes, state keys: all that follows from the order of the builder calls."""
        graph, reference = self.graph, self.reference
        assert [node.id for node in graph.topology.nodes] == reference.ids
        assert list(graph._modules) == list(reference.registered)
        assert list(graph.tag_names()) == list(self.recipe.defined)
        assert graph.has_state() == self.recipe.is_stateful
        assert list(graph.topology.inputs)[1:] == list(self.recipe.ports)
        if all(player.calls for player in reference.players.values()):
            assert list(graph.state_dict()) == reference.state_keys()

    def follow(self, calls: Sequence[Call], lead: Sequence[int], seed: int = 0) -> None:
        """Play a whole schedule."""
        for index, call in enumerate(calls):
            self.call(
                draw_inputs(self.recipe, lead, seed + index), grad=call.grad, whole=call.whole
            )
            if call.backward:
                self.backward()
            if call.after == "validate":
                self.validate(draw_inputs(self.recipe, lead, seed - 1))
            elif call.after:
                getattr(self.graph, call.after)()
            if call.after == "reset_state":
                self.reference.reset()
            elif call.after in ("end_step", "detach_state"):
                self.reference.detach()
                self.idle.clear()
                self.compare_observations()


def _gradients(loss: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor | None]:
    loss.backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items()}
    for leaf in leaves.values():
        leaf.grad = None
    return gradients


def _compare(graph: Graph, reference: Reference, *, values_only: bool = False) -> None:
    where = graph.label or "graph"
    for name in graph.tag_names():
        ours, theirs = graph.tagged(name), reference.tags.get(name)
        assert (ours is None) == (theirs is None), f"{where}: tag {name}"
        if ours is not None:
            assert_close(ours, theirs, msg=lambda m, n=name: f"{where}: tag {n}: {m}", **CLOSE)
            hung = ours.requires_grad, theirs.requires_grad
            assert values_only or hung[0] == hung[1], f"{where}: tag {name}: gradients {hung}"
    for name, expected in reference.traces.items():
        _compare_lists(f"{where}: trace {name}", graph.traces(name), expected, values_only)
    for node in (node.id for node in graph.topology.loops):
        expected = reference.traces_by_node.get(node, [])
        _compare_lists(
            f"{where}: trace() of {node}", graph.traces_by_node(node), expected, values_only
        )
        if f"{node}/halt" not in reference.traces:
            assert not graph.traces(f"{node}/halt")
    assert graph.traces("never published") is None


def _compare_lists(
    what: str, ours: Sequence[Tensor] | None, expected: Sequence[Tensor], values_only: bool
) -> None:
    ours = list(ours or [])
    assert len(ours) == len(expected), f"{what}: {len(ours)} values for {len(expected)}"
    for mine, theirs in zip(ours, expected, strict=True):
        assert_close(mine, theirs, msg=lambda m: f"{what}: {m}", **CLOSE)
        assert values_only or mine.requires_grad == theirs.requires_grad, what
