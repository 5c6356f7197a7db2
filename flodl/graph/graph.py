"""The executable graph: it keeps state around a generated function that has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from flodl.errors import FlodlError, StateError
from flodl.graph.attached import Attached, Progress
from flodl.graph.capture import Capturable, obstacles
from flodl.graph.codegen import Core, Initial, Mark
from flodl.graph.drawn import Drawn
from flodl.graph.identity import Identified
from flodl.graph.observe import Observed
from flodl.graph.persist import Checkpointed
from flodl.graph.profile import Profiled
from flodl.graph.state import Captures, Stateful, outermost_stateful
from flodl.graph.topology import Topology
from flodl.graph.tree import Tree
from flodl.torch_features import is_exporting

_COUNTERS = ("training_step", "step_count", "epoch_step", "epoch_count")


class Graph(
    Stateful,
    Attached,
    Tree,
    Identified,
    Checkpointed,
    Observed,
    Profiled,
    Drawn,
):
    """A network made by :class:`~flodl.graph.FlowBuilder`; an ordinary ``torch.nn.Module``.

    Every node's module is a direct child. Its prefix is its ``name=``, else its first tag, else
    its node id. So ``state_dict``, ``to``, hooks, ``torch.compile`` and the rest of torch work as
    usual. Call it like a module: ``graph(x)``.

    Args:
        topology: Nodes, wires and tags.
        node_modules: The module of each node that runs one, by node number.
        initials: Values for state readers before the first value exists, by node number.
    """

    def __init__(
        self,
        topology: Topology,
        node_modules: Mapping[int, nn.Module],
        initials: Mapping[int, Initial] | None = None,
    ) -> None:
        super().__init__()
        self._core = Core(topology, initials)
        self._compile_options: dict[str, Any] | None = None
        self._captures = Captures(len(topology.state_tags))
        self._progress = Progress()
        # Not add_module: it refuses names of Graph's methods, and a tag may be one.
        for node in topology.nodes:
            if node.prefix:
                self._modules[node.prefix] = node_modules[node.number]
        self._carries_state = self.has_state()
        self._adopt_children()

    # --- Running ---------------------------------------------------------------------------

    def forward(self, *inputs: Tensor | None, **named: Tensor | None) -> Tensor:
        """Run every node.

        Args:
            inputs: The entry's tensor, of any shape its module takes. Then the auxiliary inputs in
                the order of their declaration; None for an optional input that is absent.
            named: Inputs by name.

        Returns:
            The value of the last node.

        Raises:
            ValueError: The number of inputs does not match the graph.
            TypeError: A module returned neither a tensor nor a tuple or list that starts with one.
            StateError: The graph has state and cannot run now.
        """
        core = self._core
        if named or len(inputs) != core.arity:
            inputs = self._ordered(inputs, named)
        return self._run(core, inputs)

    _shell = forward
    """The forward of this class, to see whether a subclass has another one."""

    def _run(self, core: Core, inputs: tuple[Tensor | None, ...]) -> Tensor:
        """Run a core of this graph, and keep what it leaves behind."""
        captures = self._captures
        captures.tags = captures.traces = None
        traced = torch.compiler.is_compiling()
        if not traced:
            if self._metrics.started is None:
                self._metrics.start()
            if self._carries_state:
                self._prepare_state()
        elif is_exporting():
            return self._exported(core, inputs)
        captures.pending_step = True
        try:
            output, captures.tags, captures.traces, captures.state = core.run(
                self._modules, inputs, captures.state
            )
        except Exception as error:
            core.explain(error)
            raise
        if self._carries_state and not traced:
            self._watch(output)
        return output

    def _exported(self, core: Core, inputs: tuple[Tensor | None, ...]) -> Tensor:
        # Tensors of an exporter hold no values: none may remain in the captures.
        if self._captures.state:
            raise StateError(
                f"{self._named()} carries {', '.join(map(repr, self.topology.state_tags))} from "
                "call to call, which an exported program cannot: pass the value in as an input() "
                "and read it as an output instead"
            )
        return core.run(self._modules, inputs, ())[0]

    def _ordered(
        self, inputs: tuple[Tensor | None, ...], named: Mapping[str, Tensor | None]
    ) -> Any:
        names = self.topology.inputs
        rest = names[len(inputs) :]
        unknown = sorted(set(named) - set(rest))
        if unknown:
            raise ValueError(
                f"this graph takes no further input {', '.join(map(repr, unknown))}; its inputs "
                f"are {', '.join(names)}"
            )
        optional = self.topology.optional
        if len(inputs) > len(names) or not all(name in named or name in optional for name in rest):
            needed = f"{len(names) - len(optional)} to " if optional else ""
            raise ValueError(
                f"this graph takes {needed}{len(names)} input(s) ({', '.join(names)}), "
                f"got {len(inputs) + len(named)}"
            )
        return (*inputs, *(named.get(name) for name in rest))

    def source(self) -> str:
        """The Python source of the function that runs the graph, one line per node."""
        return self._core.source

    @property
    def topology(self) -> Topology:
        """Nodes, wires and tags, as an immutable value."""
        return self._core.topology

    @property
    def capturable(self) -> Capturable:
        """Whether a compiler can take the whole graph as one piece; if not, it gives reasons."""
        return Capturable(tuple(obstacles(self)))

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the pure core in place, with the options of ``torch.compile``.

        State, captures and their policy stay outside and work as in eager mode. A copy of the
        graph is not compiled.
        """
        if args:
            raise TypeError("compile takes the options of torch.compile by name")
        self._compile_options = options
        self._core.run = torch.compile(self._core.run, **options)

    def _change_core(self, *, tags: bool, mark: Mark | None) -> None:
        self._core = self._core.variant(tags=tags, mark=mark)
        if self._compile_options is not None:
            self.compile(**self._compile_options)

    def _set_mark(self, mark: Mark | None) -> None:
        """Call ``mark`` as nodes run; None stops it. See :class:`~flodl.graph.codegen.Core`."""
        self._change_core(tags=self._core.tags, mark=mark)

    # --- Tags and traces -------------------------------------------------------------------

    @property
    def has_run(self) -> bool:
        """Whether the values of a successful forward can be read."""
        return self._captures.tags is not None

    def observe(self, on: bool = True) -> Self:
        """Keep tagged values after a forward (the default), or release them in it.

        Switch it off for export, and for inference when memory is short.
        """
        self._captures.tags = None
        self._change_core(tags=on, mark=self._core.mark)
        return self

    def tagged(self, name: str) -> Tensor | None:
        """The value of a tag in the last forward, with its autograd graph.

        Args:
            name: A tag, or the path of a tag in a nested graph, such as ``"encoder.hidden"``.

        Returns:
            The tensor. None in these cases: before the first forward, after a failed one, while
            ``observe(False)`` holds, for a tag that is not kept, and for an optional input that
            was absent.

        Raises:
            KeyError: The graph has no such tag.
            PathError: The path does not exist, or is the path of a graph.
        """
        if name not in self.topology.tagged_nodes:
            if "." in name:
                target = self._tag_at(name)
                return target.graph.tagged(target.tag or "")
            raise KeyError(self._no_such("tag", name, self.tag_names()))
        return self._captured_tags().get(name)

    def _captured_tags(self) -> dict[str, Tensor]:
        captured = zip(self.topology.kept_tags, self._captures.tags or (), strict=False)
        return {name: value for name, value in captured if value is not None}

    def traces(self, name: str) -> list[Tensor] | None:
        """The values that the last forward recorded under the name of a trace.

        Args:
            name: One of three: a name that a loop body published; the tag of a loop whose body has
                a ``trace`` method; or ``<node id>/halt`` for the raw outputs of a loop's
                condition. Prefix it with labels for a nested graph, as in ``"encoder.steps"``.

        Returns:
            One tensor per publication, with its autograd graph; None if there is no such trace.

        Raises:
            FlodlError: Two loops recorded values under the same name.
        """
        found = self._captured_traces().get(name)
        graph, rest = self._owner(name)
        return found if found is not None or graph is self else graph.traces(rest)

    def traces_by_node(self, node_id: str) -> list[Tensor] | None:
        """The results of the ``trace`` method of a loop's body, by the node id of the loop."""
        found = (traces.returned for node, traces in self._loop_traces() if node.id == node_id)
        return next((list(values) for values in found if values), None)

    def _loop_traces(self) -> Any:
        return zip(self.topology.loops, self._captures.traces or (), strict=False)

    def _captured_traces(self) -> dict[str, list[Tensor]]:
        found: dict[str, list[Tensor]] = {}
        for node, traces in self._loop_traces():
            named = dict(traces.published)
            tags = [tag for tag, number in self.topology.tags if number == node.number]
            for name, values in [
                *((tag, traces.returned) for tag in tags),
                (f"{node.id}/halt", traces.halts),
            ]:
                if values and name in named:
                    raise FlodlError(
                        f"{node.id} publishes a trace {name!r} and also carries a tag of that "
                        "name for what its trace() returns; rename one"
                    )
                if values:
                    named[name] = values
            for name, values in named.items():
                if name in found:
                    raise FlodlError(
                        f"two loops leave a trace {name!r}, the second is {node.id}; rename one"
                    )
                found[name] = list(values)
        return found

    # --- Cadence ---------------------------------------------------------------------------

    def end_step(self) -> None:
        """Mark the end of a training step; does nothing if no forward ran since the last one.

        Detaches the values of the last forward, here and in nested graphs.
        """
        captures = self._captures
        if not captures.pending_step:
            return
        captures.pending_step = False
        captures.detach()
        for module in outermost_stateful(self):
            if isinstance(module, Graph):
                module.end_step()
            else:
                module.detach_state()
        self._progress.step_count += 1
        self._progress.epoch_step += 1

    def end_epoch(self) -> None:
        """Mark the end of an epoch: flush the metrics and restart the count of its steps."""
        self.flush()
        self._progress.epoch_count += 1
        self._progress.epoch_step = 0

    @property
    def step_count(self) -> int:
        """Training steps finished since the graph was built."""
        return self._progress.step_count

    @property
    def epoch_step(self) -> int:
        """Training steps finished in this epoch."""
        return self._progress.epoch_step

    @property
    def epoch_count(self) -> int:
        """Epochs finished since the graph was built."""
        return self._progress.epoch_count

    def observed_state(self) -> dict[str, Any]:
        """Return metrics and counters of this graph, without nested ones, for another process.

        Buffered values are read; on a GPU this waits for them. Times of nodes are left out because
        they depend on the machine.

        Raises:
            StateError: A recorded tensor was changed in place.
        """
        counts = {name: getattr(self._progress, name) for name in _COUNTERS}
        return {"metrics": self._metrics.state(), "counts": counts}

    def set_observed_state(self, state: Mapping[str, Any]) -> None:
        """Continue with metrics and counters from :meth:`observed_state`.

        Raises:
            ValueError: ``state`` does not come from it; nothing is changed.
        """
        counts = state.get("counts")
        if not isinstance(counts, dict) or counts.keys() != set(_COUNTERS):
            raise ValueError(f"the counters are not {', '.join(_COUNTERS)}")
        if not all(type(count) is int and count >= 0 for count in counts.values()):
            raise ValueError(f"the counters are not step numbers: {counts}")
        self._metrics.set_state(state.get("metrics", {}))
        for name, count in counts.items():
            setattr(self._progress, name, count)

    # --- Devices ---------------------------------------------------------------------------

    def move_to_device(self, device: torch.device | str) -> Self:
        """Move the graph, the same as ``to(device)``."""
        return self.to(device)
