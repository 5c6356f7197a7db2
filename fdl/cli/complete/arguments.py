"""What may follow a program's or a built-in's name, told from its parameters."""

from __future__ import annotations

from fdl.cli.complete.offer import ALWAYS
from fdl.programs.parameters.contract import spellings
from fdl.programs.parameters.parameter import UNSET, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fdl.cli.complete.offer import Offer
    from fdl.programs.parameters.parameter import Parameter

    Look = Callable[[str, tuple[str, ...], str], Iterable[tuple[str, str]]]
    """A completer, the positionals before the word, the word so far -> values with descriptions."""


class Typed:
    """What the words so far have used up.

    Attributes:
        given: Names of the options that were given.
        positionals: The other words.
        open: The option whose value comes next, or None.
    """

    __slots__ = ("given", "open", "positionals")

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.positionals: list[str] = []
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
        typed = self._read(tail)
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

    def _read(self, tail: Sequence[str]) -> Typed:
        """Go over the words as the parser does, without minding what is wrong with them."""
        typed = Typed()
        for token in tail:
            opened, typed.open = typed.open, None
            if opened is not None and opened.may_take(token):
                continue
            if not token.startswith("-") or token == "-" or is_number(token):
                typed.positionals.append(token)
                continue
            name, equals, _ = token.partition("=")
            whole = name.startswith("--") or name in self._words
            for part in [name] if whole else [f"-{char}" for char in name[1:]]:
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
