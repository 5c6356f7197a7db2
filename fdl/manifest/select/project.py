"""The project a call is about: its manifests under the active environment.

Imported on the warm path.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH109
from __future__ import annotations

import os

from fdl.base.errors import FdlError, ManifestError
from fdl.base.light_record import Record
from fdl.manifest.discover import find, find_in
from fdl.manifest.layers import LOCAL, environments, overlay_file
from fdl.manifest.load import load
from fdl.manifest.select.level import RUN, Level, descend, require_reader, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.discover import Found
    from fdl.manifest.load import Manifest
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.level import Level
    from fdl.manifest.select.walk import Place


class Project(Record):
    """Reads the manifests of one project, each once.

    Attributes:
        found: The project's manifest on disk.
        env: The active environments, joined by commas, or None.
        writes_cache: Whether what is read may be cached.
        copies: Whether an example that is read is copied to a real manifest.
        directory: The project root.
        warnings: What the manifests read so far give reason to warn about.
        reads_example: Whether an example stands in for a manifest that does not exist yet.
    """

    found: Found
    env: str | None = None
    writes_cache: bool = False
    copies: bool = False

    def settle(self) -> None:
        """Begin with no manifest read."""
        self.directory = self.found.directory
        self.warnings: list[str] = []
        self._told = 0
        self.reads_example = False
        self._read: dict[str, Manifest] = {}

    def under(self, env: str) -> Project:
        """The same project under an environment."""
        return Project(self.found, env, self.writes_cache)

    def copying(self) -> Project:
        """The same project, whose examples are copied to real manifests when they are read."""
        return Project(self.found, self.env, self.writes_cache, copies=True)

    @property
    def root(self) -> Manifest:
        """The project's manifest.

        Raises:
            ManifestError: It is broken.
        """
        return self._load(self.found)

    def child(self, directory: str) -> Manifest | None:
        """The manifest of a directory, None when there is none.

        Raises:
            ManifestError: It is broken.
        """
        found = find_in(directory)
        return None if found is None else self._load(found)

    def names(self) -> list[str]:
        """Names of the commands of the project's manifest, which may not be whole by itself.

        Raises:
            ManifestError: It cannot be read.
        """
        try:
            node = self._load(self.found).node
        except ManifestError:
            # It may need its overlay to be whole; the names are there without.
            from fdl.manifest.read import read

            node = read(self.found.path)
        commands = node.get("commands")
        return list(commands.mapping) if commands else []

    def use(self, manifest: Manifest) -> None:
        """Take a manifest in place of the one on disk."""
        self._read[manifest.directory] = manifest

    def describe(self, directory: str) -> str | None:
        """A child's description for a list of commands; its errors are not that list's."""
        try:
            manifest = self.child(directory)
        except FdlError:
            return None
        return None if manifest is None else manifest.node.text("description")

    def level(self) -> Level:
        """The project as the first level of a walk."""
        return Level(self._load(self.found), (), self.directory, None)

    def descend(self, words: Sequence[str]) -> tuple[Level, list[str]]:
        """The deepest level that the words of a command enter, and the words behind.

        Raises:
            ManifestError: A manifest on the way is broken or missing.
        """
        return descend(self.level(), words, self.child)

    def secrets(self) -> list[str]:
        """The secret texts of the manifests read so far."""
        return [text for manifest in self._read.values() for text in manifest.secrets()]

    def environments(self) -> list[str]:
        """Names of the environments of the project and of the folders below it, sorted."""
        return sorted({*environments(self.directory), *self.nested(cached=True)})

    def has_environment(self, name: str) -> bool:
        """Whether :meth:`environments` has this name; reads no manifest if an overlay is here."""
        return name in environments(self.directory) or name in self.nested(cached=True)

    def nested(self, *, cached: bool = False) -> dict[str, list[Place]]:
        """Environment -> the folders below the project that have an overlay of it.

        With ``cached``, read no YAML: below a folder that has not been used yet, do not search.
        """
        from fdl.manifest.select.walk import below

        found: dict[str, list[Place]] = {}
        try:
            for place in below(self.level(), self.remembered if cached else self.child):
                for env in place.overlays:
                    found.setdefault(env, []).append(place)
        except ManifestError:
            # The project's own manifest is broken: that is the error of whoever reads it.
            return {}
        return found

    def require_overlay_for(self, what: str) -> None:
        """Refuse the environment if no manifest that has been read so far has an overlay for it.

        ``what`` says what these manifests are for: ```fdl test```.

        Raises:
            SelectionError: The message names the overlays that the environment does have.
        """
        read = (self.directory, *self._read)
        for env in self.env.split(",") if self.env else ():
            if env == LOCAL or any(overlay_file(directory, env) for directory in read):
                continue
            if known := self.nested().get(env):
                from fdl.manifest.select.walk import misplaced

                raise misplaced(env, what, known, self.directory)

    def select(
        self, tokens: Sequence[str], *, help_wanted: bool = False, help_word: str = ""
    ) -> Selection:
        """The command that a command line selects.

        Args:
            tokens: The command line without global flags.
            help_wanted: Whether its help page is wanted.
            help_word: The word behind the help flag, which may name a group of options.

        Raises:
            FdlError: A manifest on the way is broken, or the environment has no overlay for it.
        """
        from fdl.manifest.select.command import select

        selected = select(
            self.level(), tokens, self.child, help_wanted=help_wanted, help_word=help_word
        )
        if selected.kind == RUN or (selected.known and not selected.refreshes):
            if self.env:
                self.require_overlay_for(f"`fdl {' '.join(selected.command)}`")
            # A page never fails, and a script does not read settings.
            self.require_readers(selected.level, warn=help_wanted or selected.kind == RUN)
        return selected

    def require_readers(self, level: Level, *, warn: bool = False) -> None:
        """Refuse settings in a manifest on the way to a level that no program reads.

        Args:
            level: The level.
            warn: Whether to add a warning instead.

        Raises:
            ManifestError: The message has their place, and the place where they belong.
        """
        way = [level]
        while way[0].parent is not None:
            way.insert(0, way[0].parent)
        for place, one in enumerate(way):
            if not unread(one):
                continue
            try:
                self.require_reader(one, way[place + 1 :])
            except ManifestError as problem:
                if not warn:
                    raise
                self.warn(f"{problem.message}; {problem.hint}")
                return

    def require_reader(self, level: Level, towards: Sequence[Level] = ()) -> None:
        """The same for the manifest of one level; ``towards`` are the levels to name first."""
        from fdl.manifest.select.walk import below

        found = (under.level for under in below(level, self.child))
        require_reader(level, [*towards, *filter(None, found)])

    def warn(self, warning: str) -> None:
        """Add a warning, unless it is there."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    def untold(self) -> list[str]:
        """The warnings that are new since the last call, for the terminal."""
        fresh = self.warnings[self._told :]
        self._told = len(self.warnings)
        return fresh

    def remembered(self, directory: str) -> Manifest | None:
        """The manifest of a directory if it is known without reading YAML; else None."""
        from fdl.manifest.load import known

        found = find_in(directory)
        return self._read.get(found.directory) or known(found, self.env) if found else None

    def _load(self, found: Found) -> Manifest:
        known = self._read.get(found.directory)
        if known is None:
            if self.copies and found.is_example:
                from fdl.manifest.example import settled

                found = settled(found)
            self.reads_example |= found.is_example
            known = load(found, self.env, write_cache=self.writes_cache)
            self.warnings.extend(known.warnings)
            self._read[found.directory] = known
        return known


def locate() -> Found | None:
    """The manifest nearest to the working directory, or None.

    Raises:
        FdlError: The working directory is gone or cannot be read.
    """
    try:
        return find(os.getcwd())
    except OSError as problem:
        raise FdlError(
            f"the current directory cannot be read: {problem.strerror}", hint="cd to another one"
        ) from None


def required(found: Found | None) -> Found:
    """``found``, where a command makes no sense without a manifest.

    Raises:
        ManifestError: There is none.
    """
    if found is None:
        raise ManifestError(
            f"no fdl.yml found in {os.getcwd()} or any directory above it",
            hint="create one here, or type `fdl init NAME` for a new project",
        )
    return found
