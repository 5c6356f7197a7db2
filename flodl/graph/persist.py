"""The checkpoint part of a graph: qualified names, saving, loading, the source configuration."""

from __future__ import annotations

import os

from torch import Tensor, nn

from flodl.checkpoint import (
    LoadReport,
    load_checkpoint_file,
    persistent_buffers,
    qualify,
    save_checkpoint_file,
)
from flodl.checkpoint.sharded import reshard
from flodl.checkpoint.store import OnShapeMismatch
from flodl.errors import CheckpointError
from flodl.graph.base import GraphBase


class Checkpointed(GraphBase):
    """The part of a graph's interface that saves and loads its weights."""

    def __init__(self) -> None:
        super().__init__()
        self._source_config: str | None = None

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
                f"set_source_config wants a string, not {type(text).__name__}; "
                "encode it, for instance with json.dumps"
            )
        self._source_config = text

    def clear_source_config(self) -> None:
        """Save without a configuration from now on; existing files stay."""
        self._source_config = None

    # --- Checkpoints -----------------------------------------------------------------------

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and persistent buffers to ``path``, atomically.

        The file is a safetensors file with label and structural hash. A path ending in ``.gz`` is
        compressed. A shared tensor is stored once.

        Under ``fully_shard`` the file is the same as that of this graph on one device. Then call
        this on every rank: the ranks gather one tensor at a time, and rank 0 writes.

        Raises:
            CheckpointError: The file cannot be written, or other ranks with parts of the
                parameters did not call this within five minutes.
            ValueError: A tensor has no values: it is on the meta device, or its memory was freed.
        """
        reshard(self)
        save_checkpoint_file(
            path,
            self.named_parameters(remove_duplicate=False),
            persistent_buffers(self, tied=True),
            self.structural_hash(),
            label=self.label or "",
            source_config=self._source_config,
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
        report = load_checkpoint_file(
            path,
            self.named_parameters(),
            persistent_buffers(self),
            None if on_shape_mismatch == "skip" else self.structural_hash(),
            on_shape_mismatch=on_shape_mismatch,
        )
        if report.missing and not report.loaded:
            stored = ", ".join(report.skipped[:3]) or "no tensors"
            raise CheckpointError(
                f"nothing in checkpoint {os.fspath(path)} matched this graph: it wants "
                f"{report.missing[0]} and so on, the file holds {stored}; give modules meant to "
                "match a tag or a name=, or rename the tensors with migrate_checkpoint_file"
            )
        return report
