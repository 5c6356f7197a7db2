"""Shell completion: the words of an unfinished command line -> what may stand there.

    fdl __complete SHELL -- WORDS

``WORDS`` are all words behind ``fdl`` up to and including the one under the cursor, which may be
empty. The answer is one candidate per line, for zsh and fish with a tab and a description behind
it. A first line ``:files`` asks the shell to offer files as well; with a tab and a folder behind
it, files as seen from that folder.

Imported on the warm path. It writes nothing and asks nothing. It starts only the snippets that
a schema declares as completers.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.cli.complete.offer import Offer

_DESCRIBING = ("zsh", "fish")
"""Shells that show descriptions beside the candidates, and match candidates by rules of their
own: they get all of them, where bash gets what begins like the word."""


def answer(argv: Sequence[str]) -> int:
    """Print the candidates for ``SHELL -- WORDS``; whatever goes wrong only costs candidates."""
    try:
        shell, dashes, *words = argv
        if dashes != "--":
            return 0
        from fdl.cli.complete.engine import complete

        current = words[-1] if words else ""
        offer = complete(words, describe=shell in _DESCRIBING)
        text = _lines(offer, current, describe=shell in _DESCRIBING)
        import sys

        # As bytes: names of files and commands arrive unchanged, whatever the locale says.
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
    # Whoever presses TAB is in the middle of a line: there is no place to tell about a problem.
    except Exception:
        return 0
    return 0


def _lines(offer: Offer, current: str, *, describe: bool) -> str:
    matching = [value for value in offer.candidates if value.startswith(current)]
    lines = []
    if offer.files_wanted(matching):
        lines.append(f":files\t{offer.folder}" if offer.folder else ":files")
    for value in offer.candidates if describe else matching:
        text = offer.candidates[value]
        lines.append(f"{value}\t{text}" if describe and text else value)
    return "".join(f"{line}\n" for line in lines)
