"""Where on the command line the cursor stands, and what may stand there.

It follows the same way as a call: global flags, environment, built-in or manifest command,
arguments. Imported on the warm path.
"""

# pathlib would add to the start of a command.
# ruff: noqa: PTH109, PTH121
from __future__ import annotations

import os

from fdl.base.errors import FdlError
from fdl.cli.complete.offer import OTHERWISE, Offer, add_global, listed, values
from fdl.cli.prepass import scan
from fdl.manifest.builtins import BUILTINS, HIDDEN, OF_SELF, PROGRAMS
from fdl.manifest.select.environment import explicit, meaning, steps_back
from fdl.manifest.select.level import RUN
from fdl.manifest.select.project import Project, locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fdl.manifest.select.level import Level
    from fdl.programs.parameters.contract import Schema


def complete(words: Sequence[str], *, describe: bool) -> Offer:
    """The candidates for the last of the words behind ``fdl``, whether or not they begin like it.

    Raises:
        FdlError: A manifest on the way to the cursor is broken.
    """
    *before, current = words or [""]
    offer = Offer()
    if "--" in before:
        _Place(before, offer, describe=describe).behind_dashes()
    elif before[-1:] == ["--env"]:
        _Place(before[:-1], offer, describe=describe).add_environments("", current)
    elif current.startswith("--env="):
        _Place(before, offer, describe=describe).add_environments("--env=", current[6:])
    elif before[-1:] == ["--each"]:
        _Place(before[:-1], offer, describe=describe).add_keys("")
    elif current.startswith("--each="):
        _Place(before, offer, describe=describe).add_keys("--each=")
    else:
        place = _Place(before, offer, describe=describe)
        place.add(current)
        if not current and not offer and not offer.value_due:
            # Options are all that can follow, so they are shown without a dash to ask for them.
            place.add("-")
        elif current.startswith("-") and not offer.value_due:
            place.add_flags()
    return offer


class _Place:
    """The place behind some words.

    Raises:
        UsageError: Nothing can follow them: they contradict each other.
    """

    def __init__(self, before: Sequence[str], offer: Offer, *, describe: bool) -> None:
        self._before = before
        self._offer = offer
        self._describe = describe
        self._invocation = scan(before)
        try:
            found = locate()
        except FdlError:
            found = None
        # Without an environment, until one is chosen.
        self._known = self._base = Project(found) if found else None
        self._by_word = False
        self._tokens = list(self._invocation.tokens)
        # Then the word under the cursor names a group of options; behind nothing else, a command.
        self._asks_for_help = before[-1:] in (["-h"], ["--help"])
        self._chosen = explicit(self._invocation.env, os.environ) is not None
        if self._known and (asked := explicit(self._invocation.env, os.environ)):
            # One that the project does not have, perhaps of another project, is passed over.
            names = filter(self._known.has_environment, asked[0].split(","))
            if env := ",".join(names):
                self._known = self._known.under(env)
        else:
            self._take_environment((*BUILTINS, *HIDDEN))
        self._first = not self._tokens

    def add(self, current: str) -> None:
        """Offer what is no global flag."""
        work = self._invocation.work
        if work.jobs and not work.each and self._known and (self._tokens or "/" in current):
            self._add_further_commands(self._known, current)
        elif not self._tokens:
            if not current.startswith("-"):
                self._add_first_words()
                if self._asks_for_help:
                    self._offer.add("all", "Describe every command and option")
        elif self._is_built_in(self._tokens[0]):
            self._add_built_in(current)
        elif self._tokens[0] not in HIDDEN and self._known is not None:
            self._add_of_manifest(self._known, current)

    def add_flags(self) -> None:
        """Offer the global flags."""
        free = self._invocation.env is None and not self._by_word
        environments = free and self._known is not None
        add_global(self._offer, self._before, first=self._first, env=environments)

    def add_environments(self, prefix: str, current: str) -> None:
        """Offer the names of environments; of several, for the part behind the last comma."""
        if self._known is not None:
            from fdl.cli.complete.sources import Asked, environments

            asked = Asked(self._known)
            *before, _ = current.split(",")
            prefix += "".join(f"{one}," for one in before)
            found = [one for one in environments(asked) if one[0] not in before]
            self._offer.add_all(found, prefix)

    def add_keys(self, prefix: str) -> None:
        """Offer what a sweep can vary: options of the program, else the settings of a manifest."""
        from fdl.plan.generate import FIELDS

        level = self._known.descend(self._tokens)[0] if self._known else None
        keys = [(f"{section}.{field}", "") for section, field, _ in FIELDS if field != "dir"]
        if level is not None and level.entry:
            from fdl.programs.schema import known

            schema = known(level)
            if schema:
                keys = [(name, one.help) for name, one in schema.options.items()]
        self._offer.add_all(((f"{name}=", text) for name, text in keys), prefix)

    def behind_dashes(self) -> None:
        """Offer files: what follows ``--`` belongs to a program that fdl knows nothing about."""
        word = self._tokens[0]
        if self._known is None or word in ("--", *HIDDEN) or self._is_built_in(word):
            return
        tokens = self._tokens[: self._tokens.index("--")]
        level, _ = self._known.descend(tokens)
        self._offer.add_files(OTHERWISE, _unless_here(level.manifest.directory))

    def _is_built_in(self, word: str) -> bool:
        return word in (*BUILTINS, *OF_SELF) and not steps_back(word, self._base, self._tokens[1:])

    def _take_environment(self, built_in: Collection[str] = ()) -> None:
        """Use the environment that the first word names, unless there is a command of that name."""
        if self._chosen or not self._known or not self._tokens or self._tokens[0].startswith("-"):
            return
        try:
            names_one, is_command = meaning(self._tokens[0], self._known, built_in, cached=True)
        except FdlError:
            return
        if names_one and not is_command:
            self._chosen = self._by_word = True
            self._known = self._known.under(self._tokens.pop(0))

    def _add_first_words(self) -> None:
        from fdl.cli.builtins import summary

        self._offer.add_all((name, summary(name)) for name in BUILTINS)
        if self._known is None:
            return
        project = self._known
        try:
            level = project.level()
            self._add_commands(project, level)
            known = level.commands.keys()
        except FdlError:
            # A manifest that cannot be read costs its commands only.
            return
        if not self._chosen:
            taken = {*BUILTINS, *HIDDEN, *known}
            names = [name for name in project.environments() if name not in taken]
            self._offer.add_all((name, f"Environment of fdl.{name}") for name in names)

    def _add_commands(self, project: Project, level: Level) -> None:

        for name, _, text in listed(level, project, describe=self._describe):
            self._offer.add(name, text)

    def _add_further_commands(self, project: Project, current: str) -> None:
        """Offer commands behind ``--jobs N``: every word is one, ``folder/name`` below a folder."""
        if current.startswith("-") or any(word.startswith("-") for word in self._tokens):
            return

        *folders, _ = current.split("/")
        level, rest = project.descend(folders)
        for name, _, text in listed(level, project, describe=self._describe):
            word = "/".join([*folders, name])
            if not rest and word not in self._tokens:
                self._offer.add(word, text)

    def _add_built_in(self, current: str) -> None:
        from fdl.cli import builtins
        from fdl.cli.complete.offer import Arguments

        names, tail = builtins.find(self._tokens)
        below = builtins.children(names)
        if below:
            if not tail and not current.startswith("-") and not self._asks_for_help:
                self._offer.add_all((name, builtins.summary(*names, name)) for name in below)
            return
        if names[0] in PROGRAMS:
            self._add_bundled(names[0], tail, current)
            return
        parameters = builtins.schema(names).parameters
        if names == ["why"] and "--run" in tail:
            parameters = tuple(one for one in parameters if one.kind == "option" or one.variadic)
        arguments = Arguments(parameters, self._look)
        arguments.add(self._offer, tail, current)
        if builtins.is_open(names) and self._known is not None and not self._offer.value_due:
            # The words of a command follow the other arguments.
            before = sum(one.kind == "arg" and not one.variadic for one in parameters)
            words = arguments.read(tail).foreign
            if len(words) >= before:
                self._tokens = words[before:]
                self._take_environment()
                self._add_of_manifest(self._known, current)

    def _add_bundled(self, name: str, tail: list[str], current: str) -> None:
        """Offer what a program with a manifest of its own takes: presets or commands, then flags.

        A project's commands of the same name are there besides.
        """
        from fdl.manifest.select import bundle

        bundled = bundle.level(name, os.environ)
        if bundled is None:
            return
        if not tail and not current.startswith("-"):
            self._offer.add_all(bundle.names(bundled, self._base.found if self._base else None))
        level, rest = bundle.reached(bundled, tail)
        self._add_arguments(level, rest, current, os.getcwd())

    def _look(
        self, completer: str, before: tuple[str, ...], text: str
    ) -> Iterable[tuple[str, str]]:
        """The values of a built-in's argument."""
        from fdl.cli.complete.sources import Asked, look_up

        return look_up(completer, Asked(self._known, before, text))

    def _add_of_manifest(self, project: Project, current: str) -> None:
        level, rest = project.descend(self._tokens)
        if rest and rest[0] in level.commands:
            if level.kind(rest[0]) == RUN:
                self._add_declared(level, rest[0], rest[1:], current)
                return
            self._add_arguments(level, rest[1:], current, preset=rest[0])
            return
        if not rest and not current.startswith("-") and not self._asks_for_help:
            self._add_commands(project, level)
        if level.names:
            self._add_arguments(level, rest, current)

    def _add_declared(self, level: Level, name: str, tail: list[str], current: str) -> None:
        """Offer the arguments under ``args:``; without any, the ``--`` before those of a script."""
        if level.commands[name].get("args"):
            from fdl.plan.declared import declared

            self._add_parameters(level, declared(level, name), tail, current)
        elif not tail:
            self._offer.add("--", "Arguments of the command follow")

    def _add_arguments(
        self,
        level: Level,
        tail: list[str],
        current: str,
        folder: str | None = None,
        preset: str | None = None,
    ) -> None:
        """Offer the arguments of a level's entry; of one fdl knows nothing about, files.

        ``folder`` is where the entry works; None for the folder of its manifest.
        """
        if not level.entry:
            return
        from fdl.programs.schema import known

        folder = _unless_here(folder or level.manifest.directory)
        asks_for_flags = current.startswith("-") and "=" not in current
        schema = known(level)
        if schema is not None and schema.commands:
            from fdl.plan.arguments import arguments as chosen

            made = chosen(level, preset, tail, schema)
            schema, tail = made.schema, made.tail
            below = schema.commands if schema and not tail and current[:1] != "-" else {}
            self._offer.add_all((word, one.description) for word, one in below.items())
        if self._asks_for_help and not asks_for_flags:
            self._add_groups(schema)
        elif schema is None:
            if not asks_for_flags:
                self._offer.add_files(OTHERWISE, folder)
        else:
            self._add_parameters(level, schema, tail, current, folder)
        if asks_for_flags and not self._offer.value_due:
            self._offer.add("--refresh-schema", "Ask the program again which arguments it takes")

    def _add_parameters(
        self, level: Level, schema: Schema | None, tail: list[str], current: str, folder: str = ""
    ) -> None:
        """Offer what a schema declares; the snippets of its completers run at the level's place."""
        from fdl.cli.complete.offer import Arguments

        place = (level.manifest.directory, level.root)
        parameters = schema.parameters if schema else ()
        arguments = Arguments(parameters, lambda one, *_: values(one, *place), folder)
        arguments.add(self._offer, tail, current)

    def _add_groups(self, schema: Schema | None) -> None:
        """Offer the words that may stand behind a help flag."""
        from fdl.manifest.words import ALL_GROUPS
        from fdl.programs.parameters.parameter import groups_of

        collapsed = schema.collapsed if schema else {}
        for word, options in groups_of(schema.parameters if schema else ()).items():
            if word:
                self._offer.add(word, collapsed.get(options[0].group, ""))
        self._offer.add(ALL_GROUPS, "Every group of options")


def _unless_here(directory: str) -> str:
    """A folder, or nothing when it is the working directory."""
    try:
        return "" if os.path.samefile(directory, os.getcwd()) else directory
    except OSError:
        return ""
