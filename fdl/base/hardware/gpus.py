"""Find the GPUs of this machine: by NVML, else ``nvidia-smi``, else the kernel's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fdl.base.hardware import kernel, nvidia_smi, nvml
from fdl.base.hardware.container import in_container
from fdl.base.hardware.facts import Nvidia, Trouble
from fdl.base.hardware.refusals import RESTART
from fdl.base.hardware.visibility import VARIABLE, restrict


def survey(environ: Mapping[str, str], root: Path) -> Nvidia:
    """Ask one source after the other until one answers; see :func:`fdl.base.hardware.nvidia`."""
    answer = nvml.read(root)
    if not answer.source:
        second = nvidia_smi.read(environ, root)
        if second.source or not answer.troubles:
            answer = second
    troubles = answer.troubles
    if not answer.gpus and not troubles:
        troubles = kernel.troubles(root, driver_answers=bool(answer.source))
    if in_container(root):
        troubles = tuple(map(_on_the_host, troubles))
    restriction = environ.get(VARIABLE)
    gpus, ignored = restrict(answer.gpus, restriction)
    return replace(
        answer,
        gpus=gpus,
        troubles=troubles + ignored,
        restriction=restriction,
        present=bool(gpus) or kernel.shows_gpu(root),
    )


def _on_the_host(trouble: Trouble) -> Trouble:
    """The same trouble in a container, where only the host can change the driver."""
    remedy = trouble.remedy
    if remedy == RESTART:
        remedy = "restart the host of this container"
    elif remedy.startswith("sudo "):
        remedy = f"on the host of this container: {remedy}"
    return replace(trouble, remedy=remedy)
