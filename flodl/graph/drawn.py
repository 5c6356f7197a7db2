"""Drawings of a graph: Graphviz source, SVG, and the display in notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fdl.base.files import replacing
from flodl.graph.base import GraphBase

Engine = Literal["layered", "dot"]


class Drawn(GraphBase):
    """Drawing of a graph; a base class of ``Graph``.

    A node shows its kind, its tags, its parameters and how many of them are frozen. If the last
    forward was profiled, it also shows its time. Nested graphs, loops, maps, gates and switches are
    closed boxes that can be opened. ``depth`` opens all boxes up to that nesting. ``expand`` opens
    some by path (``"encoder.loop_2"``, made of registry keys or labels).
    """

    def dot(self, *, depth: int = 1, expand: Iterable[str] = ()) -> str:
        """The graph as Graphviz source, with a dashed cluster per level.

        Args:
            depth: Number of nested diagrams to show; 1 shows only this graph.
            expand: Paths of composites to open at any depth.

        Raises:
            ValueError: ``depth`` is below 1, or ``expand`` is one string instead of several.
            PathError: A path does not name a composite.
        """
        from flodl.graph.draw import drawing

        return drawing.dot(self, depth, expand, profiled=False)

    def dot_with_profile(self, *, depth: int = 1, expand: Iterable[str] = ()) -> str:
        """Like :meth:`dot`, with boxes coloured by their time relative to the slowest node.

        Green is 0, orange one half, red the slowest. Without a profile it equals :meth:`dot`.
        """
        from flodl.graph.draw import drawing

        return drawing.dot(self, depth, expand, profiled=True)

    def svg(
        self,
        path: str | os.PathLike[str] | None = None,
        engine: Engine | None = None,
        *,
        depth: int = 1,
        expand: Iterable[str] = (),
    ) -> bytes:
        """The graph as an SVG image without scripts and remote assets, for light and dark pages.

        Args:
            path: File to write as well; an existing one is replaced, missing folders are created.
            engine: ``"layered"``, the default, is built in and draws the same on all machines;
                ``"dot"`` is Graphviz, which must be installed.
            depth: As for :meth:`dot`.
            expand: As for :meth:`dot`.

        Raises:
            ValueError: As for :meth:`dot`, or there is no such engine.
            PathError: As for :meth:`dot`.
            FlodlError: Graphviz is missing or failed.
        """
        return self._svg(path, engine, depth, expand, profiled=False)

    def svg_with_profile(
        self,
        path: str | os.PathLike[str] | None = None,
        engine: Engine | None = None,
        *,
        depth: int = 1,
        expand: Iterable[str] = (),
    ) -> bytes:
        """Like :meth:`svg`, with the colours of :meth:`dot_with_profile`."""
        return self._svg(path, engine, depth, expand, profiled=True)

    def _svg(
        self,
        path: str | os.PathLike[str] | None,
        engine: Engine | None,
        depth: int,
        expand: Iterable[str],
        *,
        profiled: bool,
    ) -> bytes:
        from flodl.graph.draw import drawing

        if engine not in (None, "layered", "dot"):
            raise ValueError(f"engine: there is no {engine!r}; use 'layered' or 'dot'")
        image = drawing.svg(self, engine, depth, expand, profiled=profiled)
        if path is not None:
            target = Path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as file:
                file.write(image)
        return image

    def _repr_svg_(self) -> str:
        """The display in notebooks that show no HTML."""
        return self.svg().decode()

    def _repr_html_(self) -> str:
        """The display in notebooks: the drawing, and the inside of its boxes, to be unfolded."""
        from flodl.graph.draw import drawing

        return drawing.unfolding(self)
