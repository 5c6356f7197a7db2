"""What may stand at one place of a command line: words, files, flags of fdl, values of snippets."""

from __future__ import annotations

import os
from time import monotonic

from fdl.base.errors import FdlError
from fdl.base.global_flags import ANYWHERE, FLAGS, SPELLINGS
from fdl.manifest.builtins import RESERVED
from fdl.manifest.discover import find_in
from fdl.manifest.select.level import PATH, PRESET
from fdl.programs.parameters.contract import spellings
from fdl.programs.parameters.parameter import UNSET, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from subprocess import Popen

    from fdl.manifest.select.level import Level
    from fdl.manifest.select.project import Project
    from fdl.programs.parameters.parameter import Parameter

    Look = Callable[[str, tuple[str, ...], str], Iterable[tuple[str, str]]]
    """A completer, the positionals before the word, the word so far -> values with descriptions."""

NEVER = 0
OTHERWISE = 1
ALWAYS = 2
"""When files belong to an offer: not at all, where no candidate fits, in any case."""


class Offer:
    """Candidates and files.

    Attributes:
        candidates: Whole words -> one line each about them, which may be empty.
        files: ``NEVER``, ``OTHERWISE`` or ``ALWAYS``.
        folder: Where relative file names start; empty for the working directory.
        value_due: Whether the word is the value of an option, so that no flag can stand there.
    """

    __slots__ = ("candidates", "files", "folder", "value_due")

    def __init__(self) -> None:
        self.candidates: dict[str, str] = {}
        self.files = NEVER
        self.folder = ""
        self.value_due = False

    def add(self, value: str, text: str | None = "") -> None:
        """Offer a word; the first description of a word stays.

        What no line of a terminal can hold is left out.
        """
        if value.isprintable() and value not in ("", ":files"):
            one_line = " ".join((text or "").split())
            printable = "".join(char if char.isprintable() else "?" for char in one_line)
            self.candidates.setdefault(value, printable)

    def add_all(self, pairs: Iterable[tuple[str, str]], prefix: str = "") -> None:
        """Offer several words, all behind the same beginning."""
        for value, text in pairs:
            if value:
                self.add(prefix + value, text)

    def add_files(self, when: int, folder: str = "") -> None:
        """Offer files beside the candidates, or instead of them.

        A folder whose name would break the line it is told in has none to offer.
        """
        if "\n" in folder:
            return
        self.files = max(self.files, when)
        self.folder = folder

    def files_wanted(self, matching: Collection[str]) -> bool:
        """Whether files are offered, given the candidates that fit what is typed so far."""
        return self.files == ALWAYS or (self.files == OTHERWISE and not matching)

    def __bool__(self) -> bool:
        return bool(self.candidates) or self.files != NEVER


def add_global(offer: Offer, words: Collection[str], *, first: bool, env: bool = True) -> None:
    """Offer the flags that still have an effect; ``first``: the command is still to come."""
    given = {SPELLINGS[word].field for word in words if word in SPELLINGS}
    for flag in FLAGS:
        has_effect = {
            "env": env and "env" not in given,
            "json": first and "dry_run" in given,
            "": not words,
        }.get(flag.field, first or flag.place == ANYWHERE)
        if flag.text and has_effect and flag.field not in given:
            offer.add(flag.name, flag.text)


LIMIT_SECONDS = 2.0
"""A snippet that takes longer is stopped; what it printed until then counts."""

_MOST_BYTES = 1 << 20


def values(snippet: str, folder: str, root: str) -> list[tuple[str, str]]:
    """What a snippet prints: one value per line, with a description behind a tab if it likes.

    Args:
        snippet: Text for ``sh -c``; it sees no input, and what it says on stderr is dropped.
        folder: Where it runs: the folder in which the program itself would run.
        root: The project, handed to it as ``FDL_PROJECT_ROOT``.
    """
    if os.name == "nt":
        return []
    from subprocess import DEVNULL, PIPE, Popen

    try:
        process = Popen(
            ["sh", "-c", snippet],
            cwd=folder,
            env={**os.environ, "FDL_PROJECT_ROOT": root},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return []
    lines = _output(process).decode("utf-8", "surrogateescape").split("\n")
    pairs = (line.rstrip("\r").partition("\t") for line in lines)
    return [(value, text) for value, _, text in pairs]


def _output(process: Popen[bytes]) -> bytes:
    """All it prints within the limits; nothing of it is left running."""
    from contextlib import suppress
    from select import select
    from signal import SIGKILL

    end = monotonic() + LIMIT_SECONDS
    data = b""
    with process:
        pipe = process.stdout
        try:
            while pipe and len(data) < _MOST_BYTES:
                if not select([pipe], [], [], max(0.0, end - monotonic()))[0]:
                    break
                piece = os.read(pipe.fileno(), 1 << 16)
                if not piece:
                    return data
                data += piece
        finally:
            # Children it has left in the background belong to its group and go with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, SIGKILL)
    # The last line may have been cut in the middle.
    return data[: data.rfind(b"\n") + 1]


class Typed:
    """What the words so far have used up.

    Attributes:
        given: Names of the options that were given.
        positionals: The other words.
        foreign: The words that are neither these options nor their values.
        open: The option whose value comes next, or None.
    """

    __slots__ = ("foreign", "given", "open", "positionals")

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.positionals: list[str] = []
        self.foreign: list[str] = []
        self.open: Parameter | None = None


class Arguments:
    """The parameters of one program.

    Args:
        parameters: What it declares.
        look: Where the values of a ``completer`` come from.
        folder: Where its relative file names start; empty for the working directory.
    """

    def __init__(self, parameters: Iterable[Parameter], look: Look, folder: str = "") -> None:
        listed = list(parameters)
        self._options = {one.name: one for one in listed if one.kind == "option"}
        self._words = spellings(self._options.values())
        self._positionals = [one for one in listed if one.kind == "arg"]
        self._look = look
        self._folder = folder

    def add(self, offer: Offer, tail: Sequence[str], current: str) -> None:
        """Offer what may stand behind ``tail`` and begins like ``current``."""
        typed = self.read(tail)
        name, equals, text = current.partition("=")
        if typed.open is not None:
            self._add_values(offer, typed.open, "", current, typed)
            bare = typed.open.shape != "list" and typed.open.default is not UNSET
            offer.value_due = not (current.startswith("-") and bare)
            if offer.value_due:
                return
        if current.startswith("-"):
            one = self._words.get(name)
            if equals and one is not None:
                self._add_values(offer, one, name + equals, text, typed)
            elif not equals:
                self._add_options(offer, current, typed)
        elif typed.open is None:
            place = len(typed.positionals)
            last = self._positionals[-1:]
            rest = self._positionals[place:] or [one for one in last if one.variadic]
            if rest:
                self._add_values(offer, rest[0], "", current, typed)

    def read(self, tail: Sequence[str]) -> Typed:
        """Go over the words as the parser does, without minding what is wrong with them."""
        typed = Typed()
        for token in tail:
            opened, typed.open = typed.open, None
            if opened is not None and opened.may_take(token):
                continue
            if not token.startswith("-") or token == "-" or is_number(token):
                typed.positionals.append(token)
                typed.foreign.append(token)
                continue
            name, equals, _ = token.partition("=")
            whole = name.startswith("--") or name in self._words
            parts = [name] if whole else [f"-{char}" for char in name[1:]]
            if self._words.keys().isdisjoint(parts):
                typed.foreign.append(token)
            for part in parts:
                one = self._words.get(part)
                if one is not None:
                    typed.given.add(one.name)
                    bare = one.shape == "flag" or part in one.negatives
                    typed.open = None if equals or bare else one
        return typed

    def _add_options(self, offer: Offer, current: str, typed: Typed) -> None:
        for one in self._options.values():
            if one.name in typed.given and one.shape != "list":
                continue
            offer.add(one.display, one.help)
            for off in one.negatives:
                offer.add(off, f"Turn off {one.display}")
            # Short forms save typing, not looking up: one that stands there is only confirmed.
            if current in one.spellings and current != one.display:
                offer.add(current, one.help)

    def _add_values(
        self, offer: Offer, one: Parameter, prefix: str, text: str, typed: Typed
    ) -> None:
        """Offer an argument's values; of an option's list, for the part behind the last comma."""
        if one.shape == "flag":
            return
        taken: list[str] = []
        if one.shape == "list" and one.kind == "option":
            done, comma, text = text.rpartition(",")
            prefix += done + comma
            taken = done.split(",")
        if one.choices:
            values = [(choice, "") for choice in one.choice_texts() if choice not in taken]
            offer.add_all(values, prefix)
        elif one.completer:
            offer.add_all(self._look(one.completer, tuple(typed.positionals), text), prefix)
        elif one.type == "path":
            offer.add_files(ALWAYS, self._folder)


def listed(
    level: Level, project: Project, *, describe: bool = True
) -> Iterator[tuple[str, str, str]]:
    """Name, kind and description of the commands of a level, in file order.

    Broken and unreachable ones are left out. A path command without a description has that of the
    manifest it leads to.
    """
    for name, spec in level.commands.items():
        if name.startswith("-") or (not level.names and name in RESERVED):
            continue
        try:
            kind = level.kind(name)
            folder = level.child_directory(name)
        except FdlError:
            continue
        if kind == PRESET and not level.entry:
            continue
        text = (spec.text("description") or "") if describe else ""
        if kind == PATH:
            if find_in(folder) is None:
                continue
            # Without parsing YAML: every folder that is new would make the whole list wait.
            manifest = project.remembered(folder) if describe and not text else None
            text = (manifest.node.text("description") or "") if manifest else text
        yield name, kind, text
