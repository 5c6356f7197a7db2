"""Checkpoints of a graph: names, saving, loading whole or in part, snapshots in memory."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from flodl.checkpoint import (
    LoadReport,
    load_checkpoint_file,
    save_checkpoint_file,
)
from flodl.checkpoint.buffer_sizes import sized_as_stored
from flodl.checkpoint.extra_state import describe_extra, extra_modules, extra_name, extra_states
from flodl.checkpoint.files import read_file_header
from flodl.checkpoint.names import persistent_buffers, qualify
from flodl.checkpoint.sharded import reshard
from flodl.checkpoint.snapshot import snapshot
from flodl.checkpoint.store import OnShapeMismatch
from flodl.checkpoint.values import decode
from flodl.errors import ArchitectureMismatch, CheckpointError
from flodl.graph.observe import Observed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flodl.checkpoint.container import Header
    from flodl.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """Parameters and buffers of a model at one moment; later changes do not affect them.

    Attributes:
        params: Qualified name and CPU tensor of every parameter; a shared one under all its names.
        buffers: The same for persistent buffers.
        metrics: Last value of every metric.
        epoch: Number of epochs flushed so far.
        structural_hash: Hash of the model's architecture.
        label: Name of the graph.
        writes: Whether :meth:`save_file` writes; False if another rank has the tensors.
        extra_state: What modules returned from ``get_extra_state``, by path.
    """

    params: tuple[tuple[str, Tensor], ...]
    buffers: tuple[tuple[str, Tensor], ...]
    metrics: tuple[tuple[str, float], ...]
    epoch: int
    structural_hash: str
    label: str
    writes: bool = True
    extra_state: Mapping[str, Any] = field(default_factory=dict)

    def save_file(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint for ``Graph.load_checkpoint``, atomically.

        Raises:
            CheckpointError: The file cannot be written.
        """
        if not self.writes:
            return
        save_checkpoint_file(
            path,
            self.params,
            self.buffers,
            self.structural_hash,
            label=self.label,
            metrics=dict(self.metrics),
            epoch=self.epoch,
            extra_state=self.extra_state,
        )


class Checkpointed(Observed):
    """The part of a graph's interface that saves, copies and loads its weights."""

    _source_config: str | None = None

    # --- Names -----------------------------------------------------------------------------

    def qualified_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters with their checkpoint names (``encoder/weight``); a shared one once."""
        return [(qualify(name), parameter) for name, parameter in self.named_parameters()]

    def qualified_buffers(self) -> list[tuple[str, Tensor]]:
        """Persistent buffers with their checkpoint names; a shared one appears once."""
        return [(qualify(name), buffer) for name, buffer in persistent_buffers(self)]

    def trainable_parameters(self) -> list[nn.Parameter]:
        """The parameters that require a gradient; a shared one appears once."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    # --- Source configuration --------------------------------------------------------------

    @property
    def source_config(self) -> str | None:
        """The text from :meth:`set_source_config`, or None."""
        return self._source_config

    def set_source_config(self, text: str) -> None:
        """Set the configuration this graph was built from, usually JSON, for its checkpoints.

        :meth:`save_checkpoint` stores the unchanged text twice: in the checkpoint and in
        ``<stem>.config.json`` beside it.

        Raises:
            ValueError: ``text`` is not a string.
        """
        if not isinstance(text, str):
            raise ValueError(
                f"set_source_config needs a string, not {type(text).__name__}; "
                "encode it, for instance with json.dumps"
            )
        self._source_config = text

    # --- Checkpoints -----------------------------------------------------------------------

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, persistent buffers and extra state to ``path``, atomically.

        Extra state is what modules return from ``get_extra_state``.

        The file is a safetensors file with label and structural hash. A path ending in ``.gz`` is
        compressed. A shared tensor is stored once.

        Under ``fully_shard`` the file is the same as that of this graph on one device. Then call
        this on every rank: the ranks gather one tensor at a time, and rank 0 writes.

        Raises:
            CheckpointError: The file cannot be written, or other ranks with parts of the
                parameters did not call this within five minutes.
            ValueError: A tensor or an extra state cannot be saved; the message has its name.
        """
        reshard(self)
        save_checkpoint_file(
            path,
            self.named_parameters(remove_duplicate=False),
            persistent_buffers(self, tied=True),
            self.structural_hash(),
            label=self.label or "",
            source_config=self._source_config,
            extra_state=extra_states(self),
        )

    def load_checkpoint(
        self, path: str | os.PathLike[str], *, on_shape_mismatch: OnShapeMismatch = "error"
    ) -> LoadReport:
        """Copy a file's tensors into this graph by name; an error changes nothing.

        Under ``fully_shard`` every rank reads the file and takes its own parts.

        Args:
            path: A file written by ``save_checkpoint``.
            on_shape_mismatch: ``"skip"`` loads what fits from another architecture: tensors of
                another shape are skipped and the structural hash is not compared.

        Raises:
            ArchitectureMismatch: The file was saved from another architecture.
            ShapeMismatch: Tensors of the same name differ in shape.
            CheckpointError: The file is unreadable, or no tensor in it matches.
        """
        reshard(self)
        header, skips = read_file_header(path), on_shape_mismatch == "skip"
        hash = None if skips or _is_of(header, self) else self.structural_hash()
        with nullcontext() if skips else sized_as_stored(self, header):
            report = load_checkpoint_file(
                path,
                self.named_parameters(),
                persistent_buffers(self),
                hash,
                on_shape_mismatch=on_shape_mismatch,
                extra_modules=extra_modules(self),
            )
        if report.missing and not report.loaded:
            stored = ", ".join(report.skipped[:3]) or "no tensors"
            raise CheckpointError(
                f"nothing in checkpoint {os.fspath(path)} matched this graph: it wants "
                f"{report.missing[0]} and so on, the file holds {stored}; give modules meant to "
                "match a tag or a name=, or rename the tensors with migrate_checkpoint_file"
            )
        return report

    def snapshot_cpu(self) -> ModelSnapshot:
        """Copy parameters and persistent buffers to the CPU, with the metadata of a checkpoint.

        Tensors shared in the model are copied once and shared in the snapshot.

        Under ``fully_shard`` call this on every rank: the ranks gather one tensor at a time. The
        snapshot of rank 0 has the tensors. Snapshots of other ranks have none and save nothing.

        Raises:
            ValueError: A tensor or an extra state cannot be saved; the message has its name.
            CheckpointError: Other ranks with parts of the parameters did not call this.
        """
        reshard(self)
        params = dict(self.named_parameters(remove_duplicate=False))
        buffers = dict(persistent_buffers(self, tied=True))
        named: dict[str, Tensor] = {**params, **buffers}
        extra = describe_extra(extra_states(self), named)
        copies = snapshot(named)
        held = copies or {}
        return ModelSnapshot(
            params=tuple((name, held[name]) for name in params if name in held),
            buffers=tuple((name, held[name]) for name in buffers if name in held),
            metrics=tuple(self.latest_metrics()),
            epoch=self.flush_count,
            structural_hash=self.structural_hash(),
            label=self.label or "",
            writes=copies is not None,
            extra_state={n: decode(value, held.__getitem__) for n, value in extra.items()}
            if held
            else {},
        )


def load_part(
    root: Graph, path: str, file: str | os.PathLike[str], on_shape_mismatch: OnShapeMismatch
) -> LoadReport:
    """Do the work of ``Graph.load_subgraph_checkpoint``."""
    child = root.subgraph(path)
    header = read_file_header(file)
    stored = header.metadata.get("structural_hash", "")
    if _is_of(header, child):
        return child.load_checkpoint(file, on_shape_mismatch=on_shape_mismatch)
    around = _graphs_around(root, path)
    owner = next((graph for graph in around if _is_of(header, graph)), None)
    if owner is not None:
        return _load_from(owner, child, file, header, on_shape_mismatch)
    if stored and on_shape_mismatch == "error":
        raise ArchitectureMismatch(
            f"checkpoint {os.fspath(file)} was saved from another architecture: its structural "
            f"hash is {stored[:8]}, that of {path!r} is {child.short_hash()} and that of the whole "
            f"graph {root.short_hash()}. To take the tensors that fit by name and shape, pass "
            "on_shape_mismatch='skip'"
        )
    held = {entry.name for entry in header.model_entries}
    own = {name for name, _ in (*child.qualified_parameters(), *child.qualified_buffers())}
    if not own & held:
        for graph in around:
            if held & _names_in(graph, child).keys():
                return _load_from(graph, child, file, header, on_shape_mismatch)
    return child.load_checkpoint(file, on_shape_mismatch=on_shape_mismatch)


def _is_of(header: Header, graph: Checkpointed) -> bool:
    """Whether a file is of this architecture; trained buffers may have other sizes."""
    with sized_as_stored(graph, header, keep=False):
        return graph.structural_hash() == header.metadata.get("structural_hash", "")


def _graphs_around(root: Graph, path: str) -> list[Graph]:
    """The graphs along a path, innermost first."""
    labels = path.split(".")[:-1]
    between = [root.subgraph(".".join(labels[:end])) for end in range(len(labels), 0, -1)]
    return [*between, root]


def _prefix_in(owner: Graph, child: Graph) -> str:
    prefix: str = next(name for name, module in owner.named_modules() if module is child)
    return prefix


def _names_in(owner: Graph, child: Graph) -> dict[str, str]:
    """Map the names of a child's tensors in a file of ``owner`` to their names in the child."""
    prefix = _prefix_in(owner, child)
    tensors = (*child.named_parameters(), *persistent_buffers(child))
    return {qualify(f"{prefix}.{name}"): qualify(name) for name, _ in tensors}


def _extras_in(owner: Graph, child: Graph) -> dict[str, nn.Module]:
    """Return the modules of a child with extra state, by their path in ``owner``."""
    inside = {id(module) for module in extra_modules(child).values()}
    return {path: one for path, one in extra_modules(owner).items() if id(one) in inside}


def _load_from(
    owner: Graph,
    child: Graph,
    file: str | os.PathLike[str],
    header: Header,
    on_shape_mismatch: OnShapeMismatch,
) -> LoadReport:
    reshard(child)
    skips, prefix = on_shape_mismatch == "skip", _prefix_in(owner, child)
    with nullcontext() if skips else sized_as_stored(child, header, prefix=prefix):
        names, extra = _names_in(owner, child), _extras_in(owner, child)
        outer = {own: name for name, own in names.items()}
        own_paths = {id(module): path for path, module in extra_modules(child).items()}
        names |= {extra_name(p): extra_name(own_paths[id(m)]) for p, m in extra.items()}
        report = load_checkpoint_file(
            file,
            [(outer[qualify(name)], parameter) for name, parameter in child.named_parameters()],
            [(outer[qualify(name)], buffer) for name, buffer in persistent_buffers(child)],
            on_shape_mismatch=on_shape_mismatch,
            extra_modules=extra,
        )
    return LoadReport(
        loaded=[names[name] for name in report.loaded],
        skipped=[names[name] for name in report.skipped if name in names],
        missing=[names[name] for name in report.missing],
    )
