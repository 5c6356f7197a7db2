"""Programs that run as if an extra of flodl were not installed, or there were no network."""

from __future__ import annotations

_UNIMPORTABLE = """
import sys

class _Absent:
    names = {names!r}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

for name in list(sys.modules):
    if name.partition(".")[0] in _Absent.names:
        raise SystemExit(f"{{name}} is imported already")
sys.meta_path.insert(0, _Absent())
"""

_NO_SOCKETS = """
import sys

def _no_sockets(event, arguments):
    if event.startswith("socket."):
        raise SystemExit(f"{event} {arguments}: no socket may be opened")

sys.addaudithook(_no_sockets)
"""


def without(*packages: str) -> str:
    """The beginning of a program in which these packages cannot be imported."""
    return _UNIMPORTABLE.format(names=sorted(packages))


def without_sockets() -> str:
    """The beginning of a program that ends at the first socket."""
    return _NO_SOCKETS
