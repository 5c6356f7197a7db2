"""Node tree -> nothing, or an error that lists all mistakes of the file."""

from __future__ import annotations

from fdl.base.secrets import REDACTED, is_secret_name
from fdl.base.suggest import nearest
from fdl.errors import ManifestError
from fdl.manifest.mistakes import Empty, Missing, Refused, Unknown, Unsuitable, empty
from fdl.manifest.schema import ROOT, SECTIONS
from fdl.manifest.show import scalar
from fdl.manifest.source import shown
from fdl.node import dotted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.mistakes import Mistake, Path
    from fdl.node import Node

_ROOT_HINTS = {
    "model": "it is reserved; remove it",
    "scripts": "scripts have moved into `commands`: write `commands: {NAME: {run: …}}`",
}

# More would scroll the first ones off the screen.
_MOST_MISTAKES = 5


def check(root: Node, *, whole: bool) -> None:
    """Check one manifest file, or the merge of several.

    Args:
        root: The root mapping.
        whole: False for one layer of several. Other layers may then hold the required keys.

    Raises:
        ManifestError: One line per mistake, in file order, for the first five.
    """
    found: list[Mistake] = []
    ROOT.judge(root, (), found)
    if not whole:
        found = [mistake for mistake in found if not isinstance(mistake, Missing)]
    if found:
        raise _refusal(root, found)


def _refusal(root: Node, found: list[Mistake]) -> ManifestError:
    found.sort(key=lambda mistake: mistake.place)
    lines = []
    for mistake in found[:_MOST_MISTAKES]:
        file, line, column = mistake.place
        lines.append(f"{shown(file)}:{line}:{column}: {_problem(root, mistake)}")
    if len(found) > _MOST_MISTAKES:
        lines.append(f"and {len(found) - _MOST_MISTAKES} more mistakes")
    return ManifestError("\n".join(lines))


def _problem(root: Node, mistake: Mistake) -> str:
    """One mistake in words, without its place."""
    path = mistake.path
    match mistake:
        case Unknown():
            return _unknown_key(mistake)
        case Missing():
            return f"`{dotted(path[:-1])}` needs `{path[-1]}`"
        case Empty():
            return f"`{dotted(path)}` has no value; {empty(str(path[-1]), mistake.known)}"
        case Refused():
            return f"`{dotted(path)}` {mistake.problem}"
        case Unsuitable():
            if _is_secret(root, path):
                described = REDACTED
            else:
                behind = mistake.node.reference
                described = _described(mistake.node) + (f" (from {behind})" if behind else "")
            return f"`{dotted(path)}` {mistake.demand}, not {described}{_remedy(mistake)}"
    raise TypeError(f"no words for {mistake!r}")


def _is_secret(root: Node, path: Path) -> bool:
    """Whether a name on the path, or a mark on any value from the root down, makes it secret."""
    node = root
    marked = node.secret
    for step in path:
        children = node.value
        if isinstance(children, list) and isinstance(step, int):
            node = children[step]
        elif isinstance(children, dict):
            node = children[str(step)]
        marked = marked or node.secret
    return marked or any(is_secret_name(str(step)) for step in path)


def _remedy(mistake: Unsuitable) -> str:
    value = mistake.node.value
    if isinstance(value, str) and (close := nearest(value, mistake.near)):
        return f"; did you mean `{close}`?"
    return mistake.remedy


def _described(node: Node) -> str:
    value = node.value
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = value if isinstance(value, str) else scalar(value)
    short = text if len(text) <= 40 else f"{text[:39]}…"
    return f'the text "{short}"' if isinstance(value, str) else short


def _unknown_key(mistake: Unknown) -> str:
    path = mistake.path
    key = str(path[-1])
    problem = f"unknown key `{dotted(path)}`"
    if len(path) == 1 and key in _ROOT_HINTS:
        return f"{problem}: {_ROOT_HINTS[key]}"
    if len(path) == 3 and path[0] == key == "commands":
        name = path[1]
        return (
            f"{problem}; a command holds no commands: write them into {name}/fdl.yml, "
            f"or beside `{name}` with `path: .`"
        )
    if close := nearest(key, mistake.known):
        return f"{problem}; did you mean `{close}`?"
    homes = [name for name, section in SECTIONS.items() if key in section.keys]
    if homes:
        return f"{problem}; `{key}` belongs in `{homes[0]}`"
    if path[-2:-1] == ("training",):
        return f"{problem}; an option of the program's own belongs in `options`, beside `training`"
    return f"{problem}; known here: {', '.join(mistake.known)}"
