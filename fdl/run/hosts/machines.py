"""The hosts that a call names, with what ``hosts:`` of the manifest says about them."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

from fdl.base.errors import ManifestError, UsageError
from fdl.base.hardware.troubles import VARIABLE as DEVICES_VARIABLE
from fdl.base.light_record import Record
from fdl.manifest.node import origin, text
from fdl.run.batch.task import joining

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdl.base.global_flags import Work
    from fdl.manifest.select.project import Project
    from fdl.plan.planner import Host as Place
    from fdl.run.step import Step, Where

HERE = "here"
"""The name of the machine on which fdl is typed. It needs no ssh."""

PYTHON = ".venv/bin/python"
FIRST_PORT = 29400


class Finding(Record):
    """What is wrong on a host.

    Attributes:
        host: Its name.
        check: What was checked: ``folder``, ``packages``, …
        cause: What is wrong.
        next: The command that fixes it.
        stops: Whether nothing can start before it is fixed.
    """

    host: str
    check: str
    cause: str
    next: str
    stops: bool = True


class Machine(Record):
    """A host on which ranks run.

    Attributes:
        name: As the user calls it.
        address: What ssh connects to: ``user@host``, or a name of its configuration.
        folder: The project's folder there.
        python: The interpreter there, relative to the folder.
        gpus: How many GPUs it uses; 0 for all.
        env: Variables of the command there.
        meet: ``address:port`` where the ranks of the others reach it; empty for fdl's choice.
    """

    name: str
    address: str
    folder: str
    python: str = PYTHON
    gpus: int = 0
    env: Mapping[str, str] = {}
    meet: str = ""

    @property
    def devices(self) -> str:
        """The GPUs that it uses, of a host that may have more; empty for all."""
        return ",".join(map(str, range(self.gpus)))

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the command there, with the GPUs that it uses."""
        return {**self.env, **({DEVICES_VARIABLE: self.devices} if self.gpus else {})}

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        return self.name == HERE

    def typed(self, command: str) -> str:
        """A command as the user types it, to run in the folder of this host."""
        inside = f"cd {word(self.folder)} && {command}"
        return inside if self.is_here else f"ssh {self.address} {shlex.quote(inside)}"

    def runs(self, words: str) -> str:
        """What the user types to run the interpreter of this host in its folder."""
        return self.typed(f"{word(self.python)} {words}")

    def sought(self, command: str) -> str:
        """What to type for a host that is lost: a command that seeks it; here, the processes."""
        return "ps -fu $(id -un)" if self.is_here else command

    def finding(self, check: str, cause: str, following: str, *, stops: bool = True) -> Finding:
        """What a check has found here, and the command that fixes it."""
        return Finding(self.name, check, cause, following, stops)


def word(path: str) -> str:
    """A path as one word for the shell of a host, which replaces a ``~`` only outside of quotes."""
    home = "~/" if path.startswith("~/") else ""
    return home + shlex.quote(path.removeprefix(home))


def machines(project: Project, names: str) -> list[Machine]:
    """The hosts of ``--on HOST,HOST``, in this order.

    Raises:
        UsageError: A host is named twice, or with a name that ssh would read as an option.
        ManifestError: A value of ``hosts:`` is not usable.
    """
    listed = names.split(",")
    for name in listed:
        if listed.count(name) > 1:
            raise UsageError(f"`--on {names}` names {name} twice", hint="name each host once")
        if name.startswith("-"):
            raise UsageError(f"`--on {names}`: {name} is an option of ssh, and not a host")
    hosts = project.level().manifest.node.get("hosts")
    known = hosts.mapping if hosts is not None else {}
    found = []
    for name in listed:
        node = known.get(name)
        said: dict[str, Any] = {"address": name, "folder": project.directory}
        if node is not None:
            given = {key: one.plain() for key, one in node.mapping.items()}
            said |= {key: value for key, value in given.items() if value}
        named = said.get("env", {})
        said["env"] = {key: text(value) for key, value in named.items() if value is not None}
        if node is not None and str(said["address"]).startswith("-"):
            # ssh would run what its options say, here and before anybody agreed to anything.
            where = origin(node.mapping["address"], project.directory)
            raise ManifestError(
                f"{where}: address {said['address']!r} of `hosts: {name}` begins with a hyphen, "
                "and ssh would read it as an option",
                hint="write user@host, or a name of ~/.ssh/config",
            )
        found.append(Machine(name, **said))
    return found


def prepared(
    step: Step, project: Project, place: Place, work: Work, folder: str
) -> tuple[Step, Where]:
    """A command that hosts plan again, and where it runs.

    Args:
        step: The command as it is planned here.
        project: The project.
        place: Where it is typed.
        work: The flags before it.
        folder: Where it is typed.

    Raises:
        FdlError: It cannot run on several hosts.
    """
    from fdl.run.batch.slurm import words_of
    from fdl.run.step import Where

    if work.jobs or work.gpus_each or work.search:
        raise UsageError(
            "`--on HOST,HOST` takes one command, and no `--jobs`, `--gpus-each` or `--search`",
            hint="fdl --on HOST,HOST COMMAND",
        )
    found = machines(project, work.on)
    if len(found) > 1 and step.plan.kind != "entry":
        raise ManifestError(
            f"{step.plan.origin}: several hosts run the ranks of one program, and "
            f"`fdl {' '.join(step.plan.command)}` is a shell command",
            hint="give the program as `entry`, or name one host",
        )
    below = os.path.relpath(folder, project.directory)
    words = words_of(step.words, project.env, place, forced=work.force)
    where = Where(work.on, hosts=found, syncs=work.sync, below=below)
    return step.replaced(words=words), where


def as_text(step: Step, where: Where) -> str:
    """What a dry run shows: the command of each host."""
    lines = []
    for number, one in enumerate(where.hosts):
        count = 1 if step.plan.elastic else len(where.hosts)
        words = shlex.join(["fdl", *joining(step.words, "HOST:PORT", count)])
        gpus = f"{DEVICES_VARIABLE}={one.devices} " if one.gpus else ""
        syncs = where.syncs and not one.is_here
        sync = f"rsync the tracked files to {one.address}:{one.folder}\n" if syncs else ""
        lines.append(f"{sync}{one.typed(f'{gpus}{words}')}  # host {number}: {one.name}\n")
    return "".join(lines)
