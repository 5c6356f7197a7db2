"""Telling people about newer versions, without ever making them wait.

A command that ends on a terminal shows what a check in the background has found the day before.
Here is only the decision whether there is anything to do at all, because most commands end here.
"""

# pathlib and enum would cost every command its start-up time.
# ruff: noqa: PTH110
from __future__ import annotations

import os
import sys

from fdl.terminal import is_set
from fdl.update import OPT_OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdl.prepass import Invocation

CHECK_SECONDS = 2.0
"""How long the background process may take over all packages together."""

# Their output is read by programs, or is itself about the version.
_SILENT = ("__complete", "autocomplete", "completions", "version")


def at_exit(
    invocation: Invocation, *, in_container: bool | None = None, seconds: float = CHECK_SECONDS
) -> None:
    """Notice, nudge or start a check, as the last thing of a command; never raises.

    Whether fdl runs in a container is looked up when omitted. A check that is started has a
    budget in seconds.
    """
    if not _anyone_is_looking(invocation, os.environ):
        return
    if os.path.exists("/.dockerenv") if in_container is None else in_container:
        return
    from fdl.update.notices import show

    show(seconds)


def _anyone_is_looking(invocation: Invocation, variables: Mapping[str, str]) -> bool:
    if is_set(variables, OPT_OUT) or is_set(variables, "CI"):
        return False
    # A command of a manifest that calls fdl again: the outer one speaks when all is done.
    if "FDL_PROJECT_ROOT" in variables:
        return False
    tokens = invocation.tokens
    if invocation.help or invocation.version or invocation.json or invocation.verbosity == 0:
        return False
    if not tokens or tokens[0] in _SILENT or "--json" in tokens:
        return False
    return sys.stderr is not None and sys.stderr.isatty()
