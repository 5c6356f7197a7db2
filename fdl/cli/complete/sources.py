"""Where the values of a built-in's arguments come from: the project, the store, the catalog.

An argument of a built-in command names one of these: ``Annotated[str, Complete("runs")]``.
"""

# pathlib would double the start-up time of a completion.
# ruff: noqa: PTH109, PTH119
from __future__ import annotations

import os
from itertools import islice

from fdl.base.errors import FdlError, ManifestError
from fdl.base.light_record import Record
from fdl.cli.complete.offer import listed
from fdl.libtorch.catalog import artifacts, default_version, this_platform, versions
from fdl.libtorch.store import locate
from fdl.manifest.discover import find_in
from fdl.manifest.layers import overlay_file
from fdl.manifest.node import dotted, origin, relative
from fdl.manifest.select.level import PATH
from fdl.manifest.select.walk import below
from fdl.programs.schema.catalog import cached
from fdl.run.sweeps.store import blocks, find
from fdl.runs.find import folders, search
from fdl.runs.follow import PLAIN
from fdl.runs.prune import KINDS, NONE
from fdl.runs.quantity import FACTS, Known, quoted
from fdl.runs.query import begun, spelled
from fdl.runs.run import STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fdl.libtorch.catalog import Artifact
    from fdl.manifest.select.project import Project
    from fdl.runs.run import Run

    Values = Iterable[tuple[str, str]]
    Source = Callable[["Asked"], Values]


_MEASURED_RUNS = 20


class Asked(Record):
    """One question for values.

    Attributes:
        known_project: The project under the active environment, or None.
        before: The positional words of the command so far.
        text: The word so far.
    """

    known_project: Project | None
    before: tuple[str, ...] = ()
    text: str = ""

    @property
    def project(self) -> Project:
        """The project under the active environment.

        Raises:
            ManifestError: There is none.
        """
        if self.known_project is None:
            raise ManifestError("there is no project here to take values from")
        return self.known_project


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
    """Names of the environments of the project and of the folders below it."""
    nested = asked.project.nested(cached=True)
    root = asked.project.directory
    for name in asked.project.environments():
        file = overlay_file(root, name) or nested[name][0].overlays[name]
        yield name, f"Environment of {relative(file, root)}"


def _first_environments(asked: Asked) -> Values:
    """The same, in the place of the first word."""
    return [] if asked.before else environments(asked)


def fields(asked: Asked) -> Values:
    """Dotted paths of all values of the project's manifest."""
    root = asked.project.root
    for path, leaf in root.node.leaves():
        if path:
            yield dotted(path), origin(leaf, root.directory)


def layers(asked: Asked) -> Values:
    """What a value can be written to: ``base``, an environment, a file of the project."""
    from fdl.manifest.layers import LOCAL, environments

    root = asked.project.root
    yield "base", os.path.basename(root.found.path)
    own = [LOCAL] if overlay_file(root.directory, LOCAL) else []
    yield from ((name, "") for name in (*environments(root.directory), *own))
    files = list(root.layers)
    places = below(asked.project.level(), asked.project.remembered)
    for directory in (root.directory, *(one.directory for one in places)):
        found = find_in(directory) if directory else None
        files += [found.path] if found else []
        names = (*environments(directory), LOCAL) if directory else ()
        files += [file for name in names if (file := overlay_file(directory, name))]
    yield from ((relative(file, root.directory), "") for file in dict.fromkeys(files))


def programs(asked: Asked) -> Values:
    """The next word of a command that has a program to ask: a path command."""
    return _steps(asked.project, asked.before, programs_only=True)


def schemas(asked: Asked) -> Values:
    """The same, and the caches of programs whose manifest is gone."""
    yield from programs(asked)
    if not asked.before:
        for one in cached(asked.project.level(), asked.project.remembered):
            if one.status == "orphan":
                yield one.name, "Its manifest is gone"


def command_line(asked: Asked) -> Values:
    """A whole command line as one word: ``train quick``."""
    *before, _ = asked.text.split(" ")
    prefix = "".join(f"{word} " for word in before)
    found = _steps(asked.project, tuple(word for word in before if word), programs_only=False)
    return [(prefix + name, text) for name, text in found]


def variants(_asked: Asked) -> Values:
    """The installed variants of libtorch, of the project and of the user."""
    here = locate(os.getcwd(), os.environ)
    stores = (here, locate(os.getcwd(), os.environ, use_global=True))
    known = {one.id: one.facts.get("torch", "") for store in stores for one in store.installed()}
    return known.items()


def _torch_versions(_asked: Asked) -> Values:
    """The versions of torch that the catalog has archives of."""
    usual = default_version()
    return [(one, "Taken unless another is named" if one == usual else "") for one in versions()]


def _cuda_versions(_asked: Asked) -> Values:
    """The CUDA versions there are archives for."""
    return [(one.cuda, f"GPUs {one.recorded_archs}") for one in _artifacts() if one.cuda]


def _libtorch_names(_asked: Asked) -> Values:
    """What ``libtorch install`` can be asked for."""
    yield "auto", "What fits the GPUs of this machine"
    for one in _artifacts():
        yield one.variant, f"CUDA {one.cuda}" if one.cuda else "No GPU"


def _libtorch_sources(_asked: Asked) -> Values:
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


def _runs_then_tags(asked: Asked) -> Values:
    """Names of the runs; behind the first one also the tags that runs have."""
    found = _runs(asked)
    if asked.before:
        tags = dict.fromkeys(tag for run in found for tag in run.notes.tags)
        yield from ((tag, "Tag") for tag in tags)
    for run in found:
        yield run.name, run.state


def _run_columns(asked: Asked) -> Values:
    """The names of metrics, settings and facts of the runs, as a list takes them."""
    return [(quoted(name) if "," in name else name, what) for name, what in _quantities(asked)]


def _quantities(asked: Asked) -> Values:
    known = Known(_runs(asked)[:_MEASURED_RUNS])
    yield from ((name, "Metric") for name in known.metrics)
    yield from ((name, "Setting") for name in known.settings if name not in known.metrics)
    yield from ((name, "Fact") for name in FACTS)
    yield from ((f"best:{name}", "The best of all epochs") for name in known.metrics)


def _run_conditions(asked: Asked) -> Values:
    """A condition as one word, whose last name is completed."""
    prefix = begun(asked.text)
    return [(prefix + spelled(name), what) for name, what in _quantities(asked)]


def _checkpoint_kinds(_asked: Asked) -> Values:
    """The checkpoints of a run directory."""
    return [*((kind, f"{kind}.fdl") for kind in KINDS), (NONE, "No checkpoint")]


def _run_states(_asked: Asked) -> Values:
    """The states a run can be in."""
    return [(state, "") for state in STATES]


def _run_acts(asked: Asked) -> Values:
    """What a running training can be told."""
    if asked.before and asked.before[-1] == "set":
        return []
    return [("lr=", "Learning rate"), ("set", "A live setting"), *((act, "") for act in PLAIN)]


def metrics(asked: Asked) -> Values:
    """The metrics that runs have measured."""
    return [(name, "") for name in _metric_names(_runs(asked))]


def sweeps(asked: Asked) -> Values:
    """Names of the sweeps that have run."""
    yield "last", "The newest sweep"
    for sweep in find(asked.project):
        yield sweep.name, f"fdl {' '.join(sweep.settings['command'])}"


def _manifest_sweeps(asked: Asked) -> Values:
    """Names under ``sweeps:`` in the manifest."""
    for name, block in blocks(asked.project).items():
        yield name, f"fdl {block.text('command')}"


SOURCES: dict[str, Source] = {
    "checkpoint-kinds": _checkpoint_kinds,
    "command-line": command_line,
    "cuda-versions": _cuda_versions,
    "environments": environments,
    "fields": fields,
    "first-environments": _first_environments,
    "layers": layers,
    "libtorch-names": _libtorch_names,
    "libtorch-sources": _libtorch_sources,
    "manifest-sweeps": _manifest_sweeps,
    "metrics": metrics,
    "programs": programs,
    "run-acts": _run_acts,
    "run-columns": _run_columns,
    "run-conditions": _run_conditions,
    "run-states": _run_states,
    "runs": runs,
    "runs-then-tags": _runs_then_tags,
    "schemas": schemas,
    "sweeps": sweeps,
    "torch-versions": _torch_versions,
    "variants": variants,
}
"""Name in :class:`~fdl.programs.args._fields.Complete` -> where the values come from."""


def _steps(project: Project, before: tuple[str, ...], *, programs_only: bool) -> Values:
    level, rest = project.descend(before)
    found = [] if rest else listed(level, project)
    return [(name, text) for name, kind, text in found if kind == PATH or not programs_only]


def _artifacts() -> list[Artifact]:
    return artifacts(default_version(), this_platform())


def _runs(asked: Asked) -> list[Run]:
    return search(folders(asked.known_project))


def _metric_names(found: Iterable[Run]) -> Iterable[str]:
    """Of the newest runs only: a completion does not read hundreds of tables."""
    newest = islice(found, _MEASURED_RUNS)
    return dict.fromkeys(name for run in newest for name in run.metrics.names)
