"""An NVIDIA driver for tests: a compiled ``libnvidia-ml.so.1`` and an ``nvidia-smi``.

``nvidia(tmp_path / "nvidia", [card("6.1"), card("12.0")])`` returns the environment variables that
make a child process see these cards, through the real pynvml::

    fdl("diagnose", env=nvidia(folder, [card("8.6")]))

The dynamic loader reads its search path when a process starts, so it has to be a child. The
library is the same for all machines, and is compiled once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

from tests import fork_server

GIB = 1 << 30

LIBRARY_NOT_FOUND = 12
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
VERSION_MISMATCH = 18
UNKNOWN = 999

ABSENT = -1
"""Instead of an exit code of ``nvidia-smi``: there is no such program."""

_SOURCE = Path(__file__).with_suffix(".c")
_FOLDER = tempfile.TemporaryDirectory(prefix="fake-nvml-")


@dataclass(frozen=True)
class Slice:
    """A MIG slice."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory: int = 5 * GIB


@dataclass(frozen=True)
class Card:
    """A card as the driver describes it; ``error`` is what asking for it fails with."""

    capability: tuple[int, int]
    name: str
    uuid: str
    pci: str
    memory: int = 24 * GIB
    error: int = 0
    mig: int = -1
    slices: tuple[Slice, ...] = ()

    def line(self) -> str:
        major, minor = self.capability
        slices = "^".join(f"{one.name}~{one.uuid}~{one.memory}" for one in self.slices)
        fields = (self.name, self.uuid, self.pci, major, minor, self.memory, self.error)
        return "|".join(map(str, (*fields, self.mig, slices)))


def card(
    capability: str,
    name: str = "",
    *,
    bus: int = 1,
    memory: int = 24 * GIB,
    error: int = 0,
    slices: Sequence[Slice] | None = None,
) -> Card:
    """A card: ``card("8.6", bus=1)``; with ``slices``, even none, one whose MIG mode is on."""
    major, minor = map(int, capability.split("."))
    return Card(
        capability=(major, minor),
        name=name or f"NVIDIA Test {capability}",
        uuid=f"GPU-{bus:08x}-0000-4000-8000-{major:06x}{minor:06x}",
        pci=f"00000000:{bus:02X}:00.0",
        memory=memory,
        error=error,
        mig=-1 if slices is None else 1,
        slices=tuple(slices or ()),
    )


def nvidia(
    folder: Path,
    cards: Sequence[Card] = (),
    *,
    driver: str = "570.86.10",
    cuda: str = "12.8",
    fail: Mapping[str, int] | None = None,
    smi: int = ABSENT,
) -> dict[str, str]:
    """The environment of a machine with these cards.

    Args:
        folder: Where the programs are put.
        cards: The cards, in the order in which NVML lists them.
        driver: Version of the driver.
        cuda: CUDA version of the driver.
        fail: NVML function -> the error it fails with.
        smi: What ``nvidia-smi`` exits with: 0 when it works, else an error of NVML.
    """
    major, minor = map(int, cuda.split("."))
    library_path = os.pathsep.join([_library(), os.environ.get("LD_LIBRARY_PATH", "")])
    fork_server.share_library_path(library_path)
    _write_smi(folder, _answers(cards, driver, cuda), smi)
    return {
        "LD_LIBRARY_PATH": library_path,
        "PATH": os.pathsep.join(
            [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "FAKE_NVML_DRIVER": driver,
        "FAKE_NVML_CUDA": str(1000 * major + 10 * minor),
        "FAKE_NVML_CARDS": "\n".join(one.line() for one in cards),
        "FAKE_NVML_FAIL": " ".join(f"{name}={code}" for name, code in (fail or {}).items()),
    }


def without_nvidia(folder: Path) -> dict[str, str]:
    """The environment of a machine with neither card nor driver, whatever the real one has."""
    return nvidia(folder, fail={"nvmlInitWithFlags": LIBRARY_NOT_FOUND})


def only_smi(
    folder: Path, cards: Sequence[Card], *, driver: str = "570.86.10", cuda: str = "12.8"
) -> dict[str, str]:
    """The environment of a machine where the library is out of reach and ``nvidia-smi`` works."""
    absent = {"nvmlInitWithFlags": LIBRARY_NOT_FOUND}
    return nvidia(folder, cards, driver=driver, cuda=cuda, fail=absent, smi=0)


@cache
def _library() -> str:
    """The folder of the compiled library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the fake driver needs Linux and a C compiler")
    library = Path(_FOLDER.name) / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{library.name}"]
    subprocess.run([compiler, *flags, "-o", str(library), str(_SOURCE)], check=True)
    return _FOLDER.name


def _write_smi(folder: Path, answers: Mapping[str, object], code: int) -> None:
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(parents=True, exist_ok=True)
    body = f"""
        import json, sys

        if {code}:
            print("NVIDIA-SMI has failed: error {code}")
            sys.exit({code})
        answers = json.loads({json.dumps(json.dumps(answers))})
        asked = next((word for word in sys.argv[1:] if word.startswith("--query-gpu=")), None)
        if asked:
            keys = asked.partition("=")[2].split(",")
            for card in answers["cards"]:
                print(", ".join(card[key] for key in keys))
        else:
            print(answers[sys.argv[1]])
    """
    # What cannot be run hides a real nvidia-smi further down the PATH.
    interpreter = "/nowhere/python" if code == ABSENT else f"{sys.executable} -IB"
    program.write_text(f"#!{interpreter}\n{dedent(body)}", encoding="utf-8")
    program.chmod(0o755)


def _answers(cards: Sequence[Card], driver: str, cuda: str) -> dict[str, object]:
    version = f"CUDA Version                              : {cuda}\n"
    if int(driver.partition(".")[0]) >= 610:
        version = (
            "CUDA Version                              : [Deprecated; use another]\n"
            f"CUDA UMD Version                          : {cuda}\n"
        )
    listed = []
    for index, one in enumerate(cards):
        listed.append(f"GPU {index}: {one.name} (UUID: {one.uuid})")
        for place, part in enumerate(one.slices):
            listed.append(f"  MIG 1g.5gb      Device  {place}: (UUID: {part.uuid})")
    return {
        "cards": [_row(index, one, driver) for index, one in enumerate(cards)],
        "-L": "\n".join(listed),
        "-q": (
            "\n==============NVSMI LOG==============\n\n"
            f"Driver Version                            : {driver}\n"
            f"{version}\n"
            f"Attached GPUs                             : {len(cards)}"
        ),
    }


def _row(index: int, one: Card, driver: str) -> dict[str, str]:
    """What the query answers; about a card that is lost nothing but where it was."""
    known = {"index": str(index), "pci.bus_id": one.pci, "driver_version": driver}
    told = {
        "uuid": one.uuid,
        "name": one.name,
        "compute_cap": "{}.{}".format(*one.capability),
        "memory.total": str(one.memory >> 20),
        "mig.mode.current": {-1: "[N/A]", 0: "Disabled", 1: "Enabled"}[one.mig],
    }
    return {**known, **(dict.fromkeys(told, "[GPU is lost]") if one.error else told)}
