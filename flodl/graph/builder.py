"""FlowBuilder: describe a network from input to output; each step is checked at once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, cast

from torch import nn

from flodl import log
from flodl.errors import BuildError
from flodl.graph.codegen import Initial
from flodl.graph.draft import Draft
from flodl.graph.graph import Graph
from flodl.graph.modules import ModuleLike, as_module, modules
from flodl.graph.topology import ENTRY, Combine, Loop, Map, MergeOp, Wire

_P = ParamSpec("_P")
_B = TypeVar("_B", bound="FlowBuilder")


def _fluent(
    method: Callable[Concatenate[FlowBuilder, _P], None],
) -> Callable[Concatenate[_B, _P], _B]:
    """Make a building step fluent: the first misuse is recorded, later steps do nothing."""
    name = method.__name__.strip("_")

    @functools.wraps(method)
    def step(self: _B, *args: _P.args, **kwargs: _P.kwargs) -> _B:
        self._begin_step(name)
        if self._misuse is None:
            try:
                method(self, *args, **kwargs)
            except (BuildError, ValueError) as error:
                self._misuse = f"{self._draft.here}: {name}: {error}"
        return self

    return cast("Callable[Concatenate[_B, _P], _B]", step)


def _caller() -> str:
    """``file:line`` of the nearest frame outside this package."""
    package = __name__.rpartition(".")[0]
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class FlowBuilder:
    """Describes a graph as a stream of values that flows through modules.

    Every method changes the builder and returns it. The first misuse is recorded with the place of
    the call; later calls do nothing, and :meth:`build` raises it. A builder builds only once.
    Where a module is expected, a function of tensors works too.

    ``FlowBuilder.from_(module)`` feeds the graph's input to ``module``. ``FlowBuilder()`` starts
    with an identity.

    Example:
        >>> graph = FlowBuilder.from_(nn.Linear(4, 8)).through(nn.GELU()).tag("h").build()
    """

    _makes: ClassVar[type[Graph]] = Graph
    """The class of the graphs from :meth:`build`."""

    def __init__(self) -> None:
        self._begin()
        self.through(nn.Identity())

    @classmethod
    def from_(cls, module: ModuleLike) -> Self:
        """Start a flow whose input feeds ``module``."""
        builder = cls.__new__(cls)
        builder._begin()
        builder.through(module)
        return builder

    def _begin(self) -> None:
        self._draft = Draft()
        self._streams: list[int] = [ENTRY]
        self._split_at = ""
        self._targets: list[int] = []
        self._no_target = "there is no module yet"
        self._fork: int | None = None
        self._main_targets: list[int] = []
        self._unfinished: str | None = None
        self._verbose = False
        self._misuse: str | None = None
        self._spent = False

    # --- Streams ---------------------------------------------------------------------------

    @_fluent
    def through(self, module: ModuleLike, *, name: str | None = None) -> None:
        """Append a module to the stream.

        Args:
            module: Takes the stream's tensor and returns the next one.
            name: The module's prefix in the registry and in checkpoints.
        """
        self._continue(self._draft.call(module, self._stream(), name))

    @_fluent
    def also(self, module: ModuleLike, *, name: str | None = None, broadcast: bool = False) -> None:
        """Add a module's output to the stream: ``x + module(x)``, a residual connection.

        Args:
            module: Keeps the shape of the stream. A ``using`` right after it applies to it.
            name: The module's prefix; a ``tag`` right after names the sum instead.
            broadcast: Allow an output of another shape that broadcasts with the stream.
        """
        stream = self._stream()
        branch = self._draft.call(module, stream, name)
        sum_ = self._combine("add", Combine(MergeOp.ADD, broadcast), [stream, branch])
        self._continue(sum_, target=branch)

    @_fluent
    def also_with(self, skip: ModuleLike, main: ModuleLike, *, broadcast: bool = False) -> None:
        """Replace the stream by ``skip(x) + main(x)``: a residual connection with a projection.

        Args:
            skip: Computes the first term from the stream.
            main: Computes the second term from the stream, with the same shape. A ``using`` right
                after applies to it.
            broadcast: Allow terms of different shapes that broadcast with each other.
        """
        stream = self._stream()
        branches = [self._draft.call(module, stream, None) for module in (skip, main)]
        sum_ = self._combine("add", Combine(MergeOp.ADD, broadcast), branches)
        self._continue(sum_, target=branches[1])

    @_fluent
    def fork(self, module: ModuleLike, *, name: str | None = None) -> None:
        """Run a side branch on the stream; the stream itself stays unchanged.

        A ``using`` or ``tag`` right after applies to the branch.

        Args:
            module: Takes the stream's tensor.
            name: The module's prefix in the registry and in checkpoints.
        """
        self._fork = self._draft.fork(module, self._stream(), name)
        self._main_targets, self._targets = self._targets, [self._fork]

    @_fluent
    def split(self, branches: Iterable[ModuleLike]) -> None:
        """Feed the stream to two or more modules; their outputs stay open until ``merge``.

        A ``using`` right after applies to all of them.
        """
        stream = self._stream()
        parallel = modules(*branches)
        if len(parallel) < 2:
            raise BuildError(f"needs at least 2 branches, got {len(parallel)}; use through")
        self._streams = [self._draft.call(module, stream, None) for module in parallel]
        self._targets = list(self._streams)
        self._split_at = self._draft.here

    @_fluent
    def merge(self, how: MergeOp | str, *, broadcast: bool = False) -> None:
        """Join the open streams into one.

        Streams of different shapes raise an error when the graph runs, unless ``broadcast`` is set.

        Args:
            how: ``MergeOp.ADD`` or ``"add"``, ``MergeOp.MEAN`` or ``"mean"``.
            broadcast: Allow streams of different shapes that broadcast with each other.
        """
        if len(self._streams) < 2:
            raise BuildError("there is only one stream; call split first")
        try:
            operation = MergeOp(how)
        except ValueError:
            known = " or ".join(repr(op.value) for op in MergeOp)
            raise BuildError(f"unknown operation {how!r}; use {known}") from None
        combine = Combine(operation, broadcast)
        self._streams = [self._combine("merge", combine, self._streams)]
        self._targets = []
        self._no_target = "a merge takes no references; call using before it"

    # --- Names -----------------------------------------------------------------------------

    @_fluent
    def tag(self, name: str, *, keep: bool = True) -> None:
        """Name the stream, or the branch of a fork, so that ``Graph.tagged`` returns its value.

        The first tag of a module is also its prefix in the registry and in checkpoints. A node may
        have several tags.

        Args:
            name: The name of the value.
            keep: Whether to keep the value after the forward. If not, only ``using`` can read it,
                and ``Graph.tagged`` returns None.
        """
        self._draft.claim_tag(name, self._stream() if self._fork is None else self._fork)
        if not keep:
            self._draft.passing.add(name)

    @_fluent
    def tag_group(self, name: str) -> None:
        """Name the open streams ``<name>_0``, ``<name>_1``, …, and the group ``<name>``."""
        if len(self._streams) < 2:
            raise BuildError("there is only one stream; use tag")
        self._draft.claim_group(name, self._streams)

    @_fluent
    def using(self, *names: str | Iterable[str], init: Mapping[str, Initial] | None = None) -> None:
        """Pass tagged values to the last module, by name.

        A tag defined before this call has the value of the same pass. Any other tag makes the
        graph recurrent: the module reads the tag's value from the previous call. In the first call
        it reads zeros with the shape of its input. Several calls add up.

        Args:
            names: Tags, one by one or as a list.
            init: For tags defined later: the value for the first call instead of zeros, a tensor
                or a function of the module's input.
        """
        tags = [tag for name in names for tag in _each_name(name)]
        unknown = sorted(set(init or {}) - set(tags))
        if unknown:
            raise BuildError(f"init= names {unknown}, which this call does not deliver")
        if tags and not self._targets:
            raise BuildError(self._no_target)
        for target in self._targets if tags else ():
            self._draft.refer(target, tags, init or {})

    @_fluent
    def entry(self, name: str) -> None:
        """Name the graph's first input, so that calls can pass it by name; default: ``input``."""
        self._draft.name_entry(name)

    @_fluent
    def input(self, *names: str, optional: bool = False) -> None:
        """Add auxiliary inputs to the graph; each gets a tag with its name.

        The stream stays the same, and so does the module that ``using`` applies to.

        Args:
            names: Names of the inputs, in the order of the arguments of a call.
            optional: Whether a call may omit them: modules that read them then get None.
        """
        for name in names:
            self._draft.port(name)
            if optional:
                self._draft.optional.add(name)

    @_fluent
    def internal(self, tag: str) -> None:
        """Hide a tag from graphs that contain this one."""
        self._draft.internal.setdefault(tag, self._draft.here)

    @_fluent
    def label(self, text: str) -> None:
        """Name the graph; the name is not part of checkpoint keys or the structural hash."""
        if not isinstance(text, str) or not text or "." in text:
            raise BuildError(f"a label is a non-empty text without dots, not {text!r}")
        self._draft.label = text

    @_fluent
    def verbose(self, on: bool = True) -> None:
        """Log the tree of the graph when it is built, at verbosity ``VERBOSE``."""
        self._verbose = on

    # --- Blocks ----------------------------------------------------------------------------

    def loop_body(self, body: ModuleLike, *, name: str | None = None) -> LoopBuilder:
        """Start a loop: each output of the body is its next input; end it on the returned builder.

        Args:
            body: Keeps the shape of its input.
            name: The loop's prefix in the registry and in checkpoints.
        """
        self._begin_block("loop_body")
        return LoopBuilder(self, body, name)

    @_fluent
    def gate(
        self,
        router: ModuleLike,
        experts: Iterable[ModuleLike],
        *,
        top_k: int | None = None,
        name: str | None = None,
    ) -> None:
        """Run experts on the stream and add their outputs, weighted by a router.

        Args:
            router: Computes weights ``[..., N]`` from the stream; they are not normalised here. A
                ``using`` right after applies to it.
            experts: N modules with outputs of the same shape, two or more.
            top_k: Use only this many experts for each row, those with the largest weights. The
                dimensions of the weights before N count as rows here: an expert gets its own rows
                of the stream as ``[rows, ...]``. Default: all experts run on the whole stream.
            name: The gate's prefix in the registry and in checkpoints.
        """
        chosen = _several("experts", experts)
        whole = isinstance(top_k, int) and not isinstance(top_k, bool)
        if top_k is not None and not (whole and 1 <= top_k <= len(chosen)):
            raise BuildError(f"top_k is from 1 to {len(chosen)}, the number of experts: {top_k!r}")
        self._continue(self._draft.gate(as_module(router), chosen, top_k, self._stream(), name))

    @_fluent
    def switch(
        self, router: ModuleLike, branches: Iterable[ModuleLike], *, name: str | None = None
    ) -> None:
        """Send each row of the batch to its own branch.

        A branch runs once, on all rows that chose it, and not at all without rows. So a branch must
        treat its rows independently, and returns as many as it gets.

        Args:
            router: Computes ``[rows]`` integers from the stream: the index of each row's branch. A
                ``using`` right after applies to it.
            branches: Two or more modules.
            name: The switch's prefix in the registry and in checkpoints.
        """
        self._switch(router, branches, False, name)

    @_fluent
    def batch_switch(
        self, router: ModuleLike, branches: Iterable[ModuleLike], *, name: str | None = None
    ) -> None:
        """Run one of several branches, chosen once for the whole batch and not for each row.

        So a row may get another answer alone than in a batch.

        Args:
            router: Computes one integer from the stream: the index of the branch. A ``using`` right
                after applies to it.
            branches: Two or more modules.
            name: The switch's prefix in the registry and in checkpoints.
        """
        self._switch(router, branches, True, name)

    def map(self, body: ModuleLike, *, name: str | None = None) -> MapBuilder:
        """Start a map: a body that runs on slices; choose them on the returned builder.

        Args:
            body: Runs on one slice, or on all of them at once.
            name: The body's prefix in the registry and in checkpoints.
        """
        self._begin_block("map")
        return MapBuilder(self, body, name)

    def build(self) -> Graph:
        """Build the graph.

        Raises:
            BuildError: A misuse was recorded (the first is reported, with its place); a loop or map
                has no end; streams are open; a referenced tag is never defined; nested graphs share
                a label; two modules have the same prefix; or ``build`` was called before.
        """
        self._refuse_if_spent("build")
        if self._misuse is None and self._unfinished is not None:
            self._misuse = self._unfinished
        if self._misuse is not None:
            raise BuildError(self._misuse)
        if len(self._streams) > 1:
            raise BuildError(
                f"{self._split_at}: split: its {len(self._streams)} streams are still open; "
                "join them with merge"
            )
        self._draft.here = _caller()
        graph = self._makes(*self._draft.finish(self._streams[0]))
        self._spent = True
        if self._verbose:
            log.verbose(graph.tree_summary())
        return graph

    # --- Bookkeeping -----------------------------------------------------------------------

    def _begin_step(self, step: str) -> None:
        self._refuse_if_spent(step)
        if self._misuse is not None:
            return
        if self._unfinished is not None:
            self._misuse = self._unfinished
            return
        self._draft.here = _caller()
        if self._fork is not None and step not in ("using", "tag"):
            self._fork, self._targets = None, self._main_targets

    def _begin_block(self, step: str) -> None:
        self._begin_step(step)
        if self._misuse is None:
            end = {"loop_body": "for_n, while_cond or until_cond", "map": "each, over or slices"}
            self._unfinished = f"{self._draft.here}: {step}: is not finished; call {end[step]}"

    def _switch(
        self, router: ModuleLike, branches: Iterable[ModuleLike], batch: bool, name: str | None
    ) -> None:
        chosen = _several("branches", branches)
        self._continue(self._draft.switch(as_module(router), chosen, batch, self._stream(), name))

    @_fluent
    def _loop(
        self,
        body: ModuleLike,
        cond: ModuleLike | None,
        kind: str,
        limit: int,
        batch: bool,
        name: str | None,
    ) -> None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            what = "n" if kind == "for" else "max_iter"
            raise BuildError(f"{what} is at least 1, not {limit!r}")
        condition = None if cond is None else as_module(cond)
        operation = Loop(cast("Any", kind), limit, batch)
        stream = self._stream()
        self._continue(self._draft.loop(operation, as_module(body), condition, stream, name))

    @_fluent
    def _map(self, body: ModuleLike, operation: Map, tag: str | None, name: str | None) -> None:
        stream = self._stream()
        if tag is not None:
            if tag not in self._draft.tags:
                raise BuildError(f"over({tag!r}): there is no such tag up to here")
            stream = self._draft.tags[tag]
        pieces = operation.pieces
        if operation.kind == "slices" and (not isinstance(pieces, int) or pieces < 1):
            raise BuildError(f"slices needs at least 1 piece, not {pieces!r}")
        self._continue(self._draft.block("map", operation, as_module(body), stream, name))

    def _refuse_if_spent(self, step: str) -> None:
        if self._spent:
            raise BuildError(f"{_caller()}: {step}: this builder has built its graph; make another")

    def _stream(self) -> int:
        if len(self._streams) > 1:
            raise BuildError(
                f"{len(self._streams)} streams are open since {self._split_at}; merge them first"
            )
        return self._streams[0]

    def _continue(self, number: int, *, target: int | None = None) -> None:
        self._streams = [number]
        self._targets = [number if target is None else target]

    def _combine(self, kind: str, operation: Combine, sources: list[int]) -> int:
        wires = [Wire(source, f"input_{index}") for index, source in enumerate(sources)]
        return self._draft.add(kind, operation, wires)


class _BlockBuilder:
    """A loop or map whose end is not set yet."""

    def __init__(self, flow: FlowBuilder, body: ModuleLike, name: str | None) -> None:
        self._flow = flow
        self._body = body
        self._name = name
        self._opened = flow._unfinished

    def _finish(self) -> FlowBuilder:
        # Only the open block can be closed: a second ending would append a second node.
        if self._flow._misuse is None and self._flow._unfinished is not self._opened:
            self._flow._misuse = f"{_caller()}: this block is finished already"
        self._flow._unfinished = None
        return self._flow


class LoopBuilder(_BlockBuilder):
    """A loop whose number of iterations is not set yet."""

    def for_n(self, n: int) -> FlowBuilder:
        """Run the body exactly ``n`` times."""
        return self._end(None, "for", n)

    def while_cond(self, cond: ModuleLike, max_iter: int) -> FlowBuilder:
        """Test before each iteration: a row whose value is > 0 is done and keeps its state.

        The loop stops when all rows are done. The body also runs on rows that are done; their
        result is dropped.

        Args:
            cond: Computes the values ``[rows, ...]`` from the state. All of a row's must be > 0.
            max_iter: Largest number of iterations, and of tests.
        """
        return self._end(cond, "while", max_iter)

    def until_cond(self, cond: ModuleLike, max_iter: int) -> FlowBuilder:
        """Test after each iteration: a row whose value is > 0 is done and keeps its state.

        The loop stops when all rows are done. The body also runs on rows that are done; their
        result is dropped.

        Args:
            cond: Computes the values ``[rows, ...]`` from the state. All of a row's must be > 0.
            max_iter: Largest number of iterations; there is no test after the last one.
        """
        return self._end(cond, "until", max_iter)

    def batch_while_cond(self, cond: ModuleLike, max_iter: int) -> FlowBuilder:
        """Test before each iteration: stops all rows together when the value is > 0.

        So a row may get another answer alone than in a batch.

        Args:
            cond: Computes a tensor, the value, from the state; all of its elements must be > 0.
            max_iter: Largest number of iterations, and of tests.
        """
        return self._end(cond, "while", max_iter, batch=True)

    def batch_until_cond(self, cond: ModuleLike, max_iter: int) -> FlowBuilder:
        """Test after each iteration: stops all rows together when the value is > 0.

        So a row may get another answer alone than in a batch.

        Args:
            cond: Computes a tensor, the value, from the state; all of its elements must be > 0.
            max_iter: Largest number of iterations; there is no test after the last one.
        """
        return self._end(cond, "until", max_iter, batch=True)

    def _end(
        self, cond: ModuleLike | None, kind: str, limit: int, *, batch: bool = False
    ) -> FlowBuilder:
        return self._finish()._loop(self._body, cond, kind, limit, batch, self._name)


class MapBuilder(_BlockBuilder):
    """A map whose slices are not set yet."""

    def __init__(self, flow: FlowBuilder, body: ModuleLike, name: str | None) -> None:
        super().__init__(flow, body, name)
        self._batched = False

    def batched(self) -> Self:
        """Pass all slices to the body in one call; it must treat them independently."""
        self._batched = True
        return self

    def each(self) -> FlowBuilder:
        """Run the body on slices ``[1, ...]`` of the first dimension and join the results."""
        return self._end(Map("each", batched=self._batched), None)

    def over(self, tag: str) -> FlowBuilder:
        """Like :meth:`each`, but on a tagged value; the result becomes the stream."""
        return self._end(Map("over", batched=self._batched), tag)

    def slices(self, n: int) -> FlowBuilder:
        """Cut the last dimension into ``n`` pieces: ``[..., D]`` becomes ``[..., D / n]``."""
        return self._end(Map("slices", n, self._batched), None)

    def _end(self, operation: Map, tag: str | None) -> FlowBuilder:
        return self._finish()._map(self._body, operation, tag, self._name)


def _each_name(names: str | Iterable[str]) -> list[str]:
    several = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    for name in several:
        if not isinstance(name, str):
            raise BuildError(f"using takes the names of tags, not {name!r}")
    return several


def _several(what: str, candidates: Iterable[ModuleLike]) -> list[nn.Module]:
    chosen = modules(*candidates)
    if len(chosen) < 2:
        raise BuildError(f"needs at least 2 {what}, got {len(chosen)}")
    return chosen
