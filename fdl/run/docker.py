"""What ``docker compose run`` does not do: make mounted folders and explain failures.

The child's stderr goes to the terminal directly, because a pipe would take away its terminal and
mix up the order of its output. So the user sees Docker's own message first. Then fdl asks Docker,
read-only, what is wrong. It prints a hint only if the container never started, because then the
exit code is not the command's. After a success, or a code that Docker does not use, it asks
nothing.
"""

# The paths of a Plan are strings.
# ruff: noqa: PTH103, PTH118
from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress

from fdl.base.compose_file import compose_text, services, value_at
from fdl.base.suggest import nearest
from fdl.plan.value import Plan

# 125-128: from the docker command itself and the daemon; 1 and 14-18: from compose.
_OF_DOCKER = frozenset((1, 14, 15, 16, 17, 18, 125, 126, 127, 128))
_PATIENCE_S = 10

_PLUGIN = (
    "install the compose plugin (package `docker-compose-plugin`, or Docker Desktop); "
    "`docker compose version` tells whether it is there"
)
_PERMISSION = "your user may not talk to Docker: `sudo usermod -aG docker $USER`, then log in again"
_DAEMON = "Docker is not running: `sudo systemctl start docker`, or start Docker Desktop"
_NVIDIA = (
    "service `{service}` asks for an NVIDIA GPU, and Docker has no NVIDIA runtime: install the "
    "NVIDIA Container Toolkit, then `sudo nvidia-ctk runtime configure --runtime=docker` and "
    "`sudo systemctl restart docker`"
)

_Answer = subprocess.CompletedProcess[str]


def make_mounted_folders(plan: Plan) -> None:
    """Make the missing folders of libtorch that the compose file mounts.

    Docker would make them too, but they would belong to root.
    """
    settings = compose_text(plan.root)
    for one in plan.variables:
        if one.name in ("LIBTORCH_CPU_PATH", "LIBTORCH_HOST_PATH") and one.name in settings:
            # If this fails, Docker prints the better message.
            with suppress(OSError):
                os.makedirs(os.path.join(plan.root, one.value), exist_ok=True)


def advice(plan: Plan, code: int, began: float) -> str:
    """The remedy for a container that did not start; empty if it did, or for unknown causes.

    The container began at ``began`` seconds since the epoch.
    """
    if code not in _OF_DOCKER:
        return ""
    try:
        return _advice(plan, began)
    # A failed hint must not hide the exit code.
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""


def _advice(plan: Plan, began: float) -> str:
    service = plan.service or ""
    started = _ask(
        plan,
        *["events", "--since", f"{began:.6f}", "--until", f"{time.time():.6f}"],
        *["--filter", "type=container", "--filter", "event=start"],
        *["--filter", f"label=com.docker.compose.service={service}", "--format", "{{.ID}}"],
    )
    if started.returncode == 0 and started.stdout.strip():
        return ""
    if _ask(plan, "compose", "version").returncode:
        return _PLUGIN
    if started.returncode:
        return _of_daemon(started.stderr)
    config = _ask(plan, "compose", "config", "--format", "json", service)
    if config.returncode:
        return _of_service(plan, config.stderr)
    if _wants_gpu(json.loads(config.stdout), service):
        runtimes = _ask(plan, "info", "--format", "{{json .Runtimes}}")
        if runtimes.returncode == 0 and "nvidia" not in runtimes.stdout:
            return _NVIDIA.format(service=service)
    return ""


def _ask(plan: Plan, *question: str) -> _Answer:
    return subprocess.run(
        ["docker", *question],
        cwd=plan.root,
        env={**os.environ, **plan.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PATIENCE_S,
        check=False,
    )


def _of_daemon(words: str) -> str:
    said = words.lower()
    if "permission denied" in said:
        return _PERMISSION
    if "cannot connect" in said or "error during connect" in said or "daemon running" in said:
        return _DAEMON
    return ""


def _of_service(plan: Plan, words: str) -> str:
    known = services(plan.root)
    if "no such service" not in words.lower() or plan.service in known:
        return ""
    close = nearest(plan.service or "", known)
    listed = ", ".join(f"`{name}`" for name in known)
    return (
        (f"did you mean `docker: {close}`? " if close else "")
        + (f"the compose file has {listed}" if known else "no compose file names a service")
        + f" ({plan.origin})"
    )


def _wants_gpu(config: object, service: str) -> bool:
    """Whether a resolved compose configuration asks for an NVIDIA GPU."""
    found = value_at(config, "services", service)
    if value_at(found, "runtime") == "nvidia" or value_at(found, "gpus"):
        return True
    devices = value_at(found, "deploy", "resources", "reservations", "devices")
    return isinstance(devices, list) and any(
        value_at(one, "driver") == "nvidia" or "gpu" in (value_at(one, "capabilities") or ())
        for one in devices
    )
