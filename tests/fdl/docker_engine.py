"""A ``docker`` for tests that behaves like the real one where fdl can see it.

``Engine(folder)`` puts it on a PATH. The program records every call (arguments, environment,
folder, whether stdin is a terminal), checks ``compose run`` as Docker does, and really executes
the command: in a session of its own, with nothing but the service's and the ``-e`` variables, and
with signals relayed, the way a container gets them. What stands in for the mount is a link to the
project, at the path that the compose file gives as its target.

This file is also the program itself; it needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

WORDS_DOWN = "Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?"
WORDS_DENIED = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///x.sock"
)
WORDS_NO_GPU = 'could not select device driver "nvidia" with capabilities: [[gpu]]'


class Engine:
    """The test's side: a Docker whose state can be set.

    Args:
        folder: Where it keeps its program, state and records.
        services: Service name -> its part of ``docker compose config``.
        state: ``daemon`` (``up``, ``down``, ``denied``), ``plugin``, ``runtimes``, ``workdir``.
    """

    def __init__(
        self, folder: Path, services: dict[str, dict[str, Any]] | None = None, **state: Any
    ) -> None:
        self._folder = folder
        bin_ = folder / "bin"
        bin_.mkdir(parents=True)
        program = bin_ / "docker"
        program.write_text(f"#!{sys.executable} -IB\n{Path(__file__).read_text('utf-8')}")
        program.chmod(0o755)
        # `python` in a manifest is the one that runs the tests, as in an activated environment.
        python = Path(sys.executable).parent
        self.path = os.pathsep.join([str(bin_), str(python), os.environ["PATH"]])
        self.set(
            services={"dev": {}} if services is None else services,
            **{"daemon": "up", "plugin": True, "runtimes": ["runc"], "workdir": "/", **state},
        )

    def set(self, **state: Any) -> None:
        """Change the state: ``engine.set(daemon="down")``."""
        file = self._folder / "state.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**known, **state}))

    def calls(self) -> list[dict[str, Any]]:
        """Every call so far: ``argv``, ``env``, ``cwd``, ``terminal``."""
        file = self._folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def runs(self) -> list[dict[str, Any]]:
        """The calls of ``docker compose run``."""
        return [call for call in self.calls() if call["argv"][:2] == ["compose", "run"]]

    def questions(self) -> list[str]:
        """The other calls, by their first words."""
        others = [call["argv"] for call in self.calls() if call["argv"][:2] != ["compose", "run"]]
        return [" ".join(argv[: 2 if argv[0] == "compose" else 1]) for argv in others]


def _fail(words: str, code: int) -> int:
    sys.stderr.write(words + "\n")
    return code


def _serve(folder: Path, argv: list[str]) -> int:
    state = json.loads((folder / "state.json").read_text())
    with (folder / "calls.jsonl").open("a") as record:
        call = {
            "argv": argv,
            "env": dict(os.environ),
            "cwd": str(Path.cwd()),
            "terminal": os.isatty(0),
        }
        record.write(json.dumps(call) + "\n")
    if argv[0] == "compose" and not state["plugin"]:
        code = 125 if argv[1] == "run" else 1
        return _fail("unknown flag: --rm" if argv[1] == "run" else "unknown command", code)
    if argv[:2] == ["compose", "version"]:
        return 0
    if argv[:2] == ["compose", "config"]:
        return _config(state, argv[-1])
    if state["daemon"] != "up":
        return _fail(WORDS_DENIED if state["daemon"] == "denied" else WORDS_DOWN, 1)
    if argv[0] == "events":
        started = folder / "started"
        sys.stdout.write(started.read_text() if started.exists() else "")
        return 0
    if argv[0] == "info":
        sys.stdout.write(json.dumps({name: {} for name in state["runtimes"]}) + "\n")
        return 0
    return _run(folder, state, argv[2:])


def _config(state: dict[str, Any], service: str) -> int:
    if service not in state["services"]:
        return _fail(f"no such service: {service}", 1)
    sys.stdout.write(json.dumps({"services": {service: state["services"][service]}}))
    return 0


def _run(folder: Path, state: dict[str, Any], words: list[str]) -> int:
    inside = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    while words[0].startswith("-"):
        flag = words.pop(0)
        if flag == "-e":
            name, equals, value = words.pop(0).partition("=")
            if equals or name in os.environ:
                inside[name] = value if equals else os.environ[name]
        elif flag not in ("--rm", "-T"):
            return _fail(f"unknown flag: {flag}", 125)
    service, *command = words
    if service not in state["services"]:
        return _fail(f"no such service: {service}", 1)
    wishes = state["services"][service].keys() & {"runtime", "gpus", "deploy"}
    if wishes and "nvidia" not in state["runtimes"]:
        return _fail(f"Error response from daemon: {WORDS_NO_GPU}", 1)
    containers: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def relay(number: int, _: object) -> None:
        if containers:
            containers[0].send_signal(number)
        else:
            early.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, relay)
    child = subprocess.Popen(command, cwd=state["workdir"], env=inside, start_new_session=True)
    containers.append(child)
    for number in early:
        child.send_signal(number)
    (folder / "started").write_text("0123456789ab\n")
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_serve(Path(__file__).parent.parent, sys.argv[1:]))
