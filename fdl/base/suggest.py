"""The nearest known name to a mistyped one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def distance(left: str, right: str, limit: int = 2) -> int | None:
    """Edits between two texts: insertions, deletions, substitutions and swaps of neighbours.

    The "optimal string alignment" variant of Damerau-Levenshtein: ``tets`` is 1 from ``test``.
    Only the part of the table that can stay within the limit is computed, so long names are cheap.

    Returns:
        The number of edits; None if it is above ``limit``.
    """
    if abs(len(left) - len(right)) > limit:
        return None
    beyond = limit + 1
    before: dict[int, int] = {}
    row = {j: j for j in range(min(limit, len(right)) + 1)}
    for i, a in enumerate(left, 1):
        before, last, row = row, before, {}
        for j in range(max(0, i - limit), min(len(right), i + limit) + 1):
            best = min(before.get(j, beyond), row.get(j - 1, beyond)) + 1
            if j:
                best = min(best, before.get(j - 1, beyond) + (a != right[j - 1]))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == right[j - 1]:
                best = min(best, last.get(j - 2, beyond) + 1)
            row[j] = best
        if min(*row.values(), *before.values()) > limit:
            return None
    found = row[len(right)]
    return found if found <= limit else None


def similar(word: str, known: Iterable[str], limit: int = 2) -> list[str]:
    """The known names with the fewest edits from ``word``, at most ``limit``, in their order.

    A name of which every letter would have to change is not suggested: ``x`` is not ``go``.
    """
    ranked = [
        (edits, name)
        for name in known
        if (edits := distance(word, name, limit)) is not None and edits < max(len(word), len(name))
    ]
    fewest = min((edits for edits, _ in ranked), default=0)
    return [name for edits, name in ranked if edits == fewest]


def nearest(word: str, known: Iterable[str], limit: int = 2) -> str | None:
    """The first of the similar names; None without one."""
    return next(iter(similar(word, known, limit)), None)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", *, typed: str = "{}") -> str:
    """The hint for a mistyped name: ``did you mean `NAME`?``, else another one.

    ``typed`` is what to type, with braces in the place of the name.
    """
    close = nearest(word, known)
    return f"did you mean `{typed.replace('{}', close)}`?" if close else otherwise


def setting_as_option(word: str, options: Mapping[str, str]) -> str:
    """The hint for a setting that was typed as ``lr=0.01``; empty for any other word.

    ``options`` holds name -> spelling: ``lr`` -> ``--lr``.
    """
    key, equals, value = word.partition("=")
    option = options.get(key.replace("_", "-")) or options.get(key)
    return f"did you mean `{option} {value}`?" if equals and value and option else ""
