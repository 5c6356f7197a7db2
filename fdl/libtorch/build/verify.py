"""Verify that a build has code for the requested architectures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fdl.base.errors import BuildError
from fdl.libtorch.architectures import Architecture
from fdl.libtorch.prove import Facts, facts_of
from fdl.libtorch.prove.facts import tally


def verify(folder: Path, archs: Sequence[Architecture], log: Path) -> None:
    """Check from the libraries that a variant runs on every GPU it was built for.

    Raises:
        BuildError: Code for an architecture is missing; the message names the log of the build.
        LibtorchError: There are no libraries.
    """
    facts = facts_of(folder)
    missing = [str(arch) for arch in archs if not _is_served(arch, facts)]
    if missing:
        found = " ".join(map(str, facts.architectures)) or "the processor alone"
        raise BuildError(
            f"what was built has no code for {', '.join(missing)}; it has code for {found}",
            hint=f"look in {log} for the reason; nothing was installed",
        )


def _is_served(arch: Architecture, facts: Facts) -> bool:
    """Whether all libraries with GPU code have machine code, and PTX if it was requested."""
    if not facts.carriers:
        return False
    compiled = all(tally(one, arch.capability).native for one in facts.carriers)
    served = all(tally(one, arch.capability).served for one in facts.carriers)
    ptx = {image.architecture.capability for image in facts.images if image.form == "ptx"}
    return compiled and served and (not arch.ptx or arch.capability in ptx)
