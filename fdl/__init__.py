"""fdl: the command line for deep-learning projects.

Importing this package is cheap on purpose: the argument classes are loaded on first use, so
that ``fdl run-kind-command`` never pays for pydantic.
"""

from fdl.base.errors import FdlError
from fdl.version import __version__

__all__ = [
    "DdpArgs",
    "FdlArgs",
    "FdlArgsError",
    "FdlError",
    "__version__",
    "arg",
    "option",
]

# `typing` alone would double the start-up time of a warm command.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.base.errors import FdlError
    from fdl.programs.args import DdpArgs, FdlArgs, FdlArgsError, arg, option


def __getattr__(name: str) -> object:
    if name in ("DdpArgs", "FdlArgs", "FdlArgsError", "arg", "option"):
        import fdl.programs.args

        return getattr(fdl.programs.args, name)
    if name == "FdlError":
        return FdlError
    raise AttributeError(f"module 'fdl' has no attribute {name!r}")
