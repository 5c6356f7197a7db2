"""What an interactive command says about updates, and when it starts a check.

Nothing is said that cannot be remembered: where the state cannot be written, every command would
say it again.
"""

# pathlib and subprocess would cost every command its start-up time.
# ruff: noqa: PTH109
from __future__ import annotations

import os
import sys
import time

from fdl import output
from fdl.shell_words import quote
from fdl.update import OPT_OUT
from fdl.update.installed import Package, packages, upgrade_command
from fdl.update.state import State, location, read, write
from fdl.update.versions import is_newer

DAY_SECONDS = 24 * 60 * 60


def show(seconds: float) -> None:
    """The notice on the first run; later the nudges that are due, and once a day a check.

    A check that is started has a budget in seconds.
    """
    file = location(os.environ)
    if file is None:
        return
    state = read(file)
    if not state.enabled:
        return
    if not state.first_run_seen:
        state.first_run_seen = True
        if write(file, state):
            output.note(_notice(file))
        return
    now = time.time()
    try:
        installed = packages(os.getcwd(), os.environ)
    except OSError:
        # The command has removed the folder it ran in.
        return
    nudged = _due(installed, state, now)
    check = not _within_a_day(state.last_check, now)
    if check:
        # Remembered before it starts: a check that fails is not repeated by every command.
        state.last_check = now
    for package in nudged:
        state.nudged[package.name] = (state.latest_known[package.name], now)
    if not (check or nudged) or not write(file, state):
        return
    for line in _lines(nudged, state):
        output.note(line)
    if check:
        _start(list(dict.fromkeys(package.name for package in installed)), file, seconds)


def _notice(file: str) -> str:
    return (
        "Once a day fdl asks the package index of your pip, in the background, whether a newer "
        "version exists; it has not asked yet.\n"
        f"To turn that off, set {OPT_OUT}=1, or `enabled` to false in {quote(file)}"
    )


def _due(installed: list[Package], state: State, now: float) -> list[Package]:
    """The outdated packages whose newest version has not been mentioned within a day."""
    return [
        package
        for package in installed
        if (latest := state.latest_known.get(package.name)) is not None
        and is_newer(latest, package.version)
        and not _mentioned(state, package.name, latest, now)
    ]


def _mentioned(state: State, name: str, version: str, now: float) -> bool:
    known, when = state.nudged.get(name, ("", 0.0))
    return known == version and _within_a_day(when, now)


def _within_a_day(when: float, now: float) -> bool:
    """False as well for a time in the future, which a corrected clock leaves behind."""
    return 0 <= now - when < DAY_SECONDS


def _lines(outdated: list[Package], state: State) -> list[str]:
    """One line per package, and behind those of one environment the command for all of them."""
    lines: list[str] = []
    commands: dict[tuple[str, bool], list[str]] = {}
    for package in outdated:
        latest = state.latest_known[package.name]
        where = "" if package.is_own else f" in {package.prefix}"
        lines.append(f"{package.name} {latest} is available; {package.version} is installed{where}")
        commands.setdefault((package.prefix, package.is_own), []).append(package.name)
    for (prefix, is_own), names in commands.items():
        lines.append(f"To upgrade: {upgrade_command(prefix, names, is_own=is_own)}")
    return lines


def _start(names: list[str], file: str, seconds: float) -> None:
    """Start the check as a process of its own, which nobody waits for."""
    import subprocess

    # -P: what lies in the folder it runs in is not imported. That folder is ours, not the
    # project's, which could not be removed on Windows while a process runs there.
    command = [sys.executable, "-P", "-m", "fdl.update", file, str(seconds), *names]
    quiet = subprocess.DEVNULL
    folder = os.path.dirname(file)  # noqa: PTH120
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet,
            start_new_session=True, creationflags=flags,
        )  # fmt: skip
    except OSError:
        return
    # It outlives us on purpose; without a code its end would be reported as forgotten.
    process.returncode = 0
