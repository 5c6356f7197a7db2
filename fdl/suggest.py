"""The nearest known name to a mistyped one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def distance(left: str, right: str) -> int:
    """Edit distance with insertions, deletions, substitutions and swaps of neighbours.

    The "optimal string alignment" variant of Damerau-Levenshtein: ``tets`` is 1 from ``test``.
    """
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(right, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                best = min(best, last[j - 2] + 1)
            row.append(best)
    return row[-1]


def nearest(word: str, known: Iterable[str], limit: int = 2) -> str | None:
    """The known name closest to ``word``, at most ``limit`` edits away; ties go to the first.

    A name of which every letter would have to change is not suggested: ``x`` is not ``go``.
    """
    ranked = [
        (distance(word, name), place, name)
        for place, name in enumerate(known)
        # Every letter that is too many is an edit.
        if abs(len(word) - len(name)) <= limit
    ]
    best = min(ranked, default=None)
    if best is None or best[0] > limit or best[0] >= max(len(word), len(best[2])):
        return None
    return best[2]


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
