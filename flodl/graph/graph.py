"""The executable graph: a thin shell that keeps state around a pure core."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint import (
    LoadReport,
    load_checkpoint_file,
    persistent_buffers,
    qualify,
    save_checkpoint_file,
)
from flodl.checkpoint.store import OnShapeMismatch
from flodl.errors import CheckpointError, PathError
from flodl.graph.codegen import Core, Tensors
from flodl.graph.identity import structural_hash
from flodl.graph.observe import Observed
from flodl.graph.topology import Topology


class Captures:
    """What the last forward left behind; a copy or a pickle of it is blank.

    A plain object with slots: writing an attribute of a module costs a microsecond.

    Attributes:
        tags: Value of every tag in declaration order; None before and during a forward.
        pending_step: Whether a forward ran since the last ``end_step``.
    """

    __slots__ = ("pending_step", "tags")

    def __init__(self) -> None:
        self.tags: Tensors | None = None
        self.pending_step = False

    def __reduce__(self) -> tuple[type[Captures], tuple[()]]:
        return Captures, ()

    def detach(self) -> None:
        """Keep the values and drop their autograd graph."""
        if self.tags is not None:
            self.tags = tuple(value.detach() for value in self.tags)


class Progress:
    """The counters of attached training, and its optimizer."""

    __slots__ = ("epoch_count", "epoch_step", "optimizer", "step_count", "training_step")

    def __init__(self) -> None:
        self.optimizer: Optimizer | None = None
        self.training_step = 0
        self.step_count = 0
        self.epoch_step = 0
        self.epoch_count = 0


class Graph(Observed):
    """A network made by :class:`~flodl.graph.FlowBuilder`; an ordinary ``torch.nn.Module``.

    Every node's module is a direct child under its prefix (its ``name=``, else its first tag,
    else its node id), so ``state_dict``, ``to``, hooks, ``torch.compile`` and everything else of
    torch applies. Call it like a module: ``graph(x)``.

    Args:
        topology: Nodes, wires and tags.
        node_modules: The module of every node that runs one, by node number.
    """

    def __init__(self, topology: Topology, node_modules: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self._core = Core(topology)
        self._captures = Captures()
        self._progress = Progress()
        # Written directly: add_module refuses names that are methods of Graph, which a tag may be.
        for node in topology.nodes:
            if node.prefix:
                self._modules[node.prefix] = node_modules[node.number]
        self._stateful = tuple(dict.fromkeys(_outermost_stateful(self)))

    # --- Running ---------------------------------------------------------------------------

    def forward(self, *inputs: Tensor) -> Tensor:
        """Run every node.

        Args:
            inputs: The entry's tensor, any shape its module takes.

        Returns:
            The value of the last node.

        Raises:
            ValueError: Another number of inputs than the graph has.
            TypeError: A module returned neither a tensor nor a tuple or list led by one.
        """
        core, captures = self._core, self._captures
        if len(inputs) != core.arity:
            raise ValueError(
                f"this graph takes {core.arity} input(s) ({', '.join(core.topology.inputs)}), "
                f"got {len(inputs)}"
            )
        captures.tags = None
        captures.pending_step = True
        try:
            output, captures.tags, _, _ = core.run(self._modules, inputs, ())
        except Exception as error:
            core.explain(error)
            raise
        return output

    def forward_multi(self, inputs: Sequence[Tensor]) -> Tensor:
        """Call the graph with its inputs in a list, the entry first."""
        output: Tensor = self(*inputs)
        return output

    def source(self) -> str:
        """The Python source of the function that runs the graph, one line per node."""
        return self._core.source

    # --- Tags ------------------------------------------------------------------------------

    def tag_names(self) -> list[str]:
        """All tags in declaration order."""
        return [name for name, _ in self._core.topology.tags]

    def tag_group(self, name: str) -> list[str] | None:
        """The tags of a group, or None when there is no such group."""
        members = dict(self._core.topology.groups).get(name)
        return None if members is None else list(members)

    def tagged(self, name: str) -> Tensor | None:
        """The value a tag had in the last forward, with its autograd graph.

        Returns:
            The tensor; None before the first forward and after one that failed.

        Raises:
            KeyError: The graph has no such tag.
        """
        names = self.tag_names()
        if name not in names:
            raise KeyError(self._no_tag(name))
        captured = self._captures.tags
        return None if captured is None else captured[names.index(name)]

    def parameters_at(self, path: str) -> list[nn.Parameter]:
        """The parameters of the module that a tag names; none where it names a sum.

        Raises:
            PathError: The graph has no such tag.
        """
        topology = self._core.topology
        number = dict(topology.tags).get(path)
        if number is None:
            raise PathError(self._no_tag(path))
        (node,) = (node for node in topology.nodes if node.number == number)
        module = self._modules[node.prefix] if node.prefix else None
        return [] if module is None else list(module.parameters())

    def _no_tag(self, name: str) -> str:
        names = self.tag_names()
        near = difflib.get_close_matches(name, names)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has: {names}"
        return f"the graph has no tag {name!r}; {hint}"

    # --- Names and identity ----------------------------------------------------------------

    @property
    def label(self) -> str | None:
        """The name given with ``label()``, or None."""
        return self._core.topology.label

    def qualified_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters under their checkpoint names (``encoder/weight``); a shared one once."""
        return [(qualify(name), parameter) for name, parameter in self.named_parameters()]

    def qualified_buffers(self) -> list[tuple[str, Tensor]]:
        """Persistent buffers under their checkpoint names; a shared one once."""
        return [(qualify(name), buffer) for name, buffer in persistent_buffers(self)]

    def trainable_parameters(self) -> list[nn.Parameter]:
        """The parameters that require a gradient; a shared one once."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def structural_hash(self) -> str:
        """SHA-256 of the architecture in hex; computed at the first call and kept.

        It covers nodes, wires, tags and the shapes of parameters and buffers, never weights,
        label, dtype or device; it is equal across processes and machines.
        """
        return self._structural_hash

    def short_hash(self) -> str:
        """The first eight digits of :meth:`structural_hash`."""
        return self._structural_hash[:8]

    @cached_property
    def _structural_hash(self) -> str:
        return structural_hash(self._core.topology, self._modules)

    # --- Checkpoints -----------------------------------------------------------------------

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and persistent buffers to ``path``, atomically.

        The file is a safetensors file that carries label and structural hash; a path ending in
        ``.gz`` is compressed. A shared tensor is stored once.

        Raises:
            CheckpointError: The file cannot be written.
        """
        save_checkpoint_file(
            path,
            self.named_parameters(remove_duplicate=False),
            persistent_buffers(self, tied=True),
            self._structural_hash,
            label=self.label or "",
        )

    def load_checkpoint(
        self, path: str | os.PathLike[str], *, on_shape_mismatch: OnShapeMismatch = "error"
    ) -> LoadReport:
        """Copy a file's tensors into this graph by name; an error changes nothing.

        Args:
            path: A file written by ``save_checkpoint``.
            on_shape_mismatch: ``"skip"`` transfers what fits from another architecture: tensors
                of another shape are left alone and the structural hash is not compared.

        Raises:
            ArchitectureMismatch: The file was saved from another architecture.
            ShapeMismatch: Tensors of the same name differ in shape.
            CheckpointError: The file is unreadable, or nothing in it matched.
        """
        report = load_checkpoint_file(
            path,
            self.named_parameters(),
            persistent_buffers(self),
            None if on_shape_mismatch == "skip" else self._structural_hash,
            on_shape_mismatch=on_shape_mismatch,
        )
        if report.missing and not report.loaded:
            stored = ", ".join(report.skipped[:3]) or "no tensors"
            raise CheckpointError(
                f"nothing in checkpoint {os.fspath(path)} matched this graph: it wants "
                f"{report.missing[0]} and so on, the file holds {stored}"
            )
        return report

    # --- Attached training -----------------------------------------------------------------

    def set_optimizer(self, factory: Callable[[list[nn.Parameter]], Optimizer]) -> None:
        """Attach an optimizer for :meth:`step`.

        Args:
            factory: Called once with all parameters; returns the optimizer. Call ``to`` first.

        Raises:
            ValueError: The factory returned something else.
        """
        optimizer = factory(list(self.parameters()))
        if not isinstance(optimizer, Optimizer):
            raise ValueError(
                f"set_optimizer wants a function that returns a torch optimizer, "
                f"it returned {type(optimizer).__name__}"
            )
        self._progress.optimizer = optimizer
        self._warn_about_uncovered(optimizer)

    def step(self) -> None:
        """Finish a training step: update the weights, clear gradients, :meth:`end_step`."""
        progress = self._progress
        if progress.optimizer is not None:
            progress.optimizer.step()
            progress.optimizer.zero_grad()
        progress.training_step += 1
        self.end_step()

    @property
    def training_step(self) -> int:
        """How many times :meth:`step` has run."""
        return self._progress.training_step

    def _warn_about_uncovered(self, optimizer: Optimizer) -> None:
        covered = {id(p) for group in optimizer.param_groups for p in group["params"]}
        missed = [
            name for name, p in self.named_parameters() if p.requires_grad and id(p) not in covered
        ]
        if missed:
            warnings.warn(
                f"the optimizer does not hold {len(missed)} trainable parameter(s), which will "
                f"never change: {', '.join(missed[:3])}; build it after moving or thawing them",
                stacklevel=3,
            )

    # --- Cadence ---------------------------------------------------------------------------

    def detach_state(self) -> None:
        """Cut what the last forward left from its autograd graph; values stay readable.

        Reaches nested graphs and every module that defines ``detach_state``.
        """
        self._captures.detach()
        for module in self._stateful:
            module.detach_state()

    def end_step(self) -> None:
        """Mark the end of a training step; does nothing when no forward ran since the last one."""
        if not self._captures.pending_step:
            return
        self._captures.pending_step = False
        self._captures.detach()
        for module in self._stateful:
            if isinstance(module, Graph):
                module.end_step()
            else:
                module.detach_state()
        self._progress.step_count += 1
        self._progress.epoch_step += 1

    def end_epoch(self) -> None:
        """Mark the end of an epoch: flush the metrics and start counting steps anew."""
        self.flush()
        self._progress.epoch_count += 1
        self._progress.epoch_step = 0

    @property
    def step_count(self) -> int:
        """Training steps ended since the graph was built."""
        return self._progress.step_count

    @property
    def epoch_step(self) -> int:
        """Training steps ended in this epoch."""
        return self._progress.epoch_step

    @property
    def epoch_count(self) -> int:
        """Epochs ended since the graph was built."""
        return self._progress.epoch_count


def _outermost_stateful(module: nn.Module) -> Iterator[Any]:
    """The modules below that define ``detach_state``, not looking into those that do."""
    for child in module.children():
        if callable(getattr(child, "detach_state", None)):
            yield child
        else:
            yield from _outermost_stateful(child)
