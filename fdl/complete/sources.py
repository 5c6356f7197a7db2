"""Where the values of a built-in's arguments come from: the project, the store, the catalog.

A parameter of :mod:`fdl.commands.registry` names one of these as its ``completer``.
"""

# pathlib would double the start-up time of a completion.
# ruff: noqa: PTH109, PTH119
from __future__ import annotations

import os
from itertools import islice

from fdl.errors import FdlError, ManifestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fdl.dispatch.walk import Level
    from fdl.libtorch.catalog import Artifact
    from fdl.project import Project
    from fdl.run_directory.run import Run

    Values = Iterable[tuple[str, str]]
    Source = Callable[["Asked"], Values]


_MEASURED_RUNS = 20


class Asked:
    """One question for values.

    Attributes:
        before: The positional words of the command so far.
        text: The word so far.
    """

    __slots__ = ("_project", "before", "text")

    def __init__(self, project: Project | None, before: tuple[str, ...], text: str) -> None:
        self._project = project
        self.before = before
        self.text = text

    @property
    def known_project(self) -> Project | None:
        """The project under the active environment, or None."""
        return self._project

    @property
    def project(self) -> Project:
        """The project under the active environment.

        Raises:
            ManifestError: There is none.
        """
        if self._project is None:
            raise ManifestError("there is no project here to take values from")
        return self._project


def look_up(name: str, asked: Asked) -> Values:
    """The values of a source; none where the project cannot tell."""
    source = SOURCES.get(name)
    if source is None:
        return []
    try:
        return list(source(asked))
    except FdlError:
        return []


def environments(asked: Asked) -> Values:
    """Names of the project's environments."""
    directory = asked.project.directory
    for name in asked.project.environments():
        file = _overlay(directory, name)
        yield name, f"Environment of {file}" if file else ""


def fields(asked: Asked) -> Values:
    """Dotted paths of all values of the project's manifest."""
    from fdl.manifest.node import dotted, origin

    root = asked.project.root
    for path, leaf in root.node.leaves():
        if path:
            yield dotted(path), origin(leaf, root.directory)


def layers(asked: Asked) -> Values:
    """What a value can be written to: ``base``, an environment, a file."""
    root = asked.project.root
    yield "base", os.path.basename(root.found.path)
    yield from environments(asked)
    overlays = (_overlay(root.directory, name) for name in asked.project.environments())
    for file in (*(os.path.relpath(one, root.directory) for one in root.layers), *overlays):
        if file:
            yield file, ""


def programs(asked: Asked) -> Values:
    """The next word of a command that has a program to ask: a path command."""
    return _steps(asked.project, asked.before, programs_only=True)


def command_line(asked: Asked) -> Values:
    """A whole command line as one word: ``train quick``."""
    *before, _ = asked.text.split(" ")
    prefix = "".join(f"{word} " for word in before)
    found = _steps(asked.project, tuple(word for word in before if word), programs_only=False)
    return [(prefix + name, text) for name, text in found]


def variants(_asked: Asked) -> Values:
    """The installed variants of libtorch, of the project and of the user."""
    from fdl.libtorch.store import locate

    here = locate(os.getcwd(), os.environ)
    stores = (here, locate(os.getcwd(), os.environ, use_global=True))
    known = {one.id: one.facts.get("torch", "") for store in stores for one in store.installed()}
    return known.items()


def torch_versions(_asked: Asked) -> Values:
    """The versions of torch that the catalog has archives of."""
    from fdl.libtorch.catalog import default_version, versions

    usual = default_version()
    return [(one, "Taken unless another is named" if one == usual else "") for one in versions()]


def cuda_versions(_asked: Asked) -> Values:
    """The CUDA versions there are archives for."""
    return [(one.cuda, f"GPUs {one.recorded_archs}") for one in _artifacts() if one.cuda]


def libtorch_names(_asked: Asked) -> Values:
    """What ``libtorch install`` can be asked for."""
    yield "auto", "What fits the GPUs of this machine"
    for one in _artifacts():
        yield one.variant, f"CUDA {one.cuda}" if one.cuda else "No GPU"


def libtorch_sources(_asked: Asked) -> Values:
    """Where ``libtorch install`` can take a variant from, files and folders aside."""
    return [("archive", "The official archive"), ("wheel", "torch's Python package, through pip")]


def runs(asked: Asked) -> Values:
    """Names of the runs, newest first, and the words for some of them."""
    found = _runs(asked)
    if found:
        yield "last", f"The newest: {found[0].name}"
    for run in found:
        yield run.name, run.state
    for name in _metric_names(found):
        yield f"best:{name}", "The best of all epochs"


def run_states(_asked: Asked) -> Values:
    """The states a run can be in."""
    from fdl.run_directory.run import STATES

    return [(state, "") for state in STATES]


def metrics(asked: Asked) -> Values:
    """The metrics that runs have measured."""
    return [(name, "") for name in _metric_names(_runs(asked))]


SOURCES: dict[str, Source] = {
    "command-line": command_line,
    "cuda-versions": cuda_versions,
    "environments": environments,
    "fields": fields,
    "layers": layers,
    "libtorch-names": libtorch_names,
    "libtorch-sources": libtorch_sources,
    "metrics": metrics,
    "programs": programs,
    "run-states": run_states,
    "runs": runs,
    "torch-versions": torch_versions,
    "variants": variants,
}
"""Name of a registry parameter's completer -> where its values come from."""


def _steps(project: Project, before: tuple[str, ...], *, programs_only: bool) -> Values:
    from fdl.complete.commands import listed
    from fdl.dispatch.classify import PATH
    from fdl.dispatch.walk import enter

    level: Level = project.level()
    for name in before:
        if name not in level.commands or level.kind(name) != PATH:
            return []
        level = enter(level, name, project.child)
    found = listed(level, project)
    return [(one.name, one.text) for one in found if one.kind == PATH or not programs_only]


def _artifacts() -> list[Artifact]:
    from fdl.libtorch.catalog import artifacts, default_version, this_platform

    return artifacts(default_version(), this_platform())


def _runs(asked: Asked) -> list[Run]:
    from fdl.run_directory.find import folders, search

    return search(folders(asked.known_project))


def _metric_names(found: Iterable[Run]) -> Iterable[str]:
    """Of the newest runs only: a completion does not read hundreds of tables."""
    newest = islice(found, _MEASURED_RUNS)
    return dict.fromkeys(name for run in newest for name in run.metrics.names)


def _overlay(directory: str, env: str) -> str:
    from fdl.manifest.layers import overlay_file

    return os.path.basename(overlay_file(directory, env) or "")
