"""Hides from the tests what they do not bring, and keeps it for the few that ask for the machine.

Variables, the home, the mask of new files and the programs that fdl looks for differ between
machines. A variable that is not named here is hidden: a new test needs no new line.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

CLIENTS = (
    "sbatch", "srun", "salloc", "squeue", "sacct", "sacctmgr", "scancel", "scontrol", "sinfo",
)  # fmt: skip

_HIDDEN_PROGRAMS = (*CLIENTS, "docker", "nvidia-smi", "xdg-open")
"""What fdl calls if a machine has it."""

_VARIABLE = "FLODL_TESTS_MACHINE"
"""Variables of this machine as JSON, for the processes of the tests."""

# What says how the tests run. A script of ours may set PYTHONPATH, and UPDATE_SCREENS a person.
_KEPT = (
    *("CI", "PATH", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONPATH"),
    *("FLODL_BENCH_DATA", "LOWER_PLAIN_ENGLISH", "MUTATION_TRACE", "RANDOM_MODELS_SEED"),
)
_KEPT_PREFIXES = ("UPDATE_", "PYTEST_XDIST_", "PYTEST_DEBUG_", "HYPOTHESIS_", "COV_", "COVERAGE_")

# Language, registries, certificates and devices: for tests that install packages or use a GPU.
_OF_MACHINE = (
    *("HOME", "PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("XDG_CONFIG_HOME", "FLODL_TORCH_INDEX"),
    # Where the compilers of the machine are, if they are not found by PATH alone.
    *("PYENV_ROOT", "RUSTUP_HOME"),
)
_OF_MACHINE_PREFIXES = ("PIP_", "CUDA_", "NCCL_", "NVIDIA_")

_SET = {
    "LANG": "C.UTF-8",
    # What a program accepts is asked for with the patience of a machine that has more to do.
    "FDL_SCHEMA_SECONDS": "60",
    # Models this small are slower on several threads; beside other workers many times slower.
    "OMP_NUM_THREADS": "1",
    # The few tests with more threads must not spin while other workers need the processor.
    "OMP_WAIT_POLICY": "PASSIVE",
}
# git refuses a checkout that belongs to somebody else, which is usual in a container.
_SETTINGS_OF_GIT = "[safe]\n\tdirectory = *\n"


def are_hidden() -> bool:
    """Whether they are hidden, by this process or by the one that started it."""
    return _VARIABLE in os.environ


def hide(folder: Path) -> None:
    """Give the tests an environment of their own, unless the process that started this did.

    Args:
        folder: Empty; for the home of the tests, and for links to programs.
    """
    if are_hidden():
        return
    os.umask(0o022)
    folder.chmod(0o755)  # some programs run as another user
    machine = _matching(_OF_MACHINE, _OF_MACHINE_PREFIXES)
    home = folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(_SETTINGS_OF_GIT, encoding="utf-8")
    own = {"HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", _VARIABLE: json.dumps(machine), **_SET}
    toolchains = Path(machine.get("HOME", "/"), ".rustup")
    if toolchains.is_dir():  # rustup looks for the compilers of the machine in the home
        own["RUSTUP_HOME"] = machine.setdefault("RUSTUP_HOME", str(toolchains))
    own["PATH"] = without_programs(machine.get("PATH", os.defpath), folder)
    kept = _matching(_KEPT, _KEPT_PREFIXES)
    os.environ.clear()
    os.environ.update({**kept, **own})


def _matching(names: tuple[str, ...], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {
        name: text
        for name, text in os.environ.items()
        if name in names or name.startswith(prefixes)
    }


def of_machine() -> Mapping[str, str]:
    """What this machine tells everybody, as it was before it was hidden."""
    return _read(os.environ[_VARIABLE])


@cache
def _read(text: str) -> Mapping[str, str]:
    found: dict[str, str] = json.loads(text)
    return found


def show_devices() -> None:
    """Show the GPUs of the machine, for tests that need one."""
    shown = (*_OF_MACHINE_PREFIXES[1:], "PATH")
    os.environ |= {name: text for name, text in of_machine().items() if name.startswith(shown)}


def found(name: str) -> str | None:
    """Where this machine has a program that is hidden from the other tests."""
    return shutil.which(name, path=of_machine().get("PATH"))


def without_programs(path: str, folder: Path) -> str:
    """A PATH where the programs that tests must not find are not found.

    Args:
        path: The PATH of this machine.
        folder: Where links to the other programs are made, if they share a folder with those.
    """
    kept: dict[Path, str] = {}
    for one in path.split(os.pathsep):
        there = Path(one).resolve()
        if there not in kept:
            hides = any((there / name).exists() for name in _HIDDEN_PROGRAMS)
            kept[there] = str(_linked(there, folder / str(len(kept)))) if hides else one
    return os.pathsep.join(kept.values())


def _linked(there: Path, folder: Path) -> Path:
    folder.mkdir()
    for program in there.iterdir():
        if program.name not in _HIDDEN_PROGRAMS:
            (folder / program.name).symlink_to(program)
    return folder
