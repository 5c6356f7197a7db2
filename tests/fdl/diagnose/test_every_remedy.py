"""Every kind of finding, and how its remedy is proved; a new kind needs a row."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fdl.diagnose.codes import CODES
from fdl.hardware.facts import Trouble
from fdl.hardware.kernel import troubles
from fdl.hardware.refusals import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_MISSING,
    NO_PERMISSION,
    OUTDATED,
    SILENT,
    UNKNOWN,
    VERSION_MISMATCH,
    of_driver,
    of_gpu,
    slices_missing,
)
from tests.fdl.diagnose import test_remedies
from tests.fdl.diagnose.conftest import activate, variant
from tests.fdl.hardware.fake_nvml import card
from tests.fdl.hardware.test_gpus import pci_card

DRY_RUN = "an fdl command, run in test_remedies.py"
SHELL = "a line that ends the finding when it is typed before fdl"
LOOK = "a line that shows more and changes nothing"
ROOT = "a line for the administrator, run with a stand-in for sudo"
WORDS = "advice in words, because no single command is right everywhere"
NONE = "nothing to do"

PROOF = {
    "manifest-broken": WORDS,
    "store-unreadable": LOOK,
    "libtorch-overridden": SHELL,
    "libtorch-variable-broken": SHELL,
    "driver-missing": WORDS,
    "driver-not-loaded": ROOT,
    "driver-permission": ROOT,
    "driver-mismatch": ROOT,
    "driver-failure": ROOT,
    "driver-silent": ROOT,
    "driver-outdated": WORDS,
    "library-missing": WORDS,
    "gpus-withheld": ROOT,
    "gpu-lost": ROOT,
    "gpu-permission": ROOT,
    "gpu-power": WORDS,
    "gpu-failure": LOOK,
    "mig-without-slices": ROOT,
    "container-without-gpus": WORDS,
    "driver-without-pytorch": WORDS,
    "visibility-unknown-gpu": LOOK,
    "visibility-repeated-gpu": SHELL,
    "gpus-hidden": NONE,
    "all-gpus-hidden": SHELL,
    "gpu-order": SHELL,
    "wsl": NONE,
    "container": NONE,
    "no-active-variant": DRY_RUN,
    "active-variant-missing": DRY_RUN,
    "architectures-unknown": LOOK,
    "gpu-uncovered": DRY_RUN,
    "gpu-jit": NONE,
    "driver-too-old": DRY_RUN,
    "torch-without-cuda": DRY_RUN,
    "torch-driver-too-old": WORDS,
}


def names(form: str) -> set[str]:
    return {name for name, proof in PROOF.items() if proof == form}


def test_every_kind_of_finding_has_a_row():
    assert set(PROOF) == set(CODES)


def test_the_commands_of_fdl_are_those_of_the_dry_runs():
    tested = test_remedies.test_a_dry_run_of_the_remedy_does_what_the_finding_needs.pytestmark
    shown = {case[0].__name__.replace("_", "-") for case in tested[0].args[1]}
    assert shown == names(DRY_RUN)


def overridden(here):
    other = here.root / "other"
    (other / "lib").mkdir(parents=True)
    variant(here.root, "precompiled/cpu", cuda="none", torch="2.10.0", archs="cpu")
    activate(here.root, "precompiled/cpu")
    return {"LIBTORCH": str(other)}


# Name of the finding -> its GPUs, and what brings it about: the variables of the shell.
ENDED = {
    "libtorch-overridden": (["8.6"], overridden),
    "libtorch-variable-broken": (["8.6"], lambda here: {"LIBTORCH": str(here.root / "gone")}),
    "visibility-repeated-gpu": (["8.6"], lambda _: {"CUDA_VISIBLE_DEVICES": "0,0"}),
    "all-gpus-hidden": (["8.6"], lambda _: {"CUDA_VISIBLE_DEVICES": ""}),
    "gpu-order": (["6.1", "8.6"], lambda _: {"CUDA_VISIBLE_DEVICES": "1"}),
}


def test_each_line_for_the_shell_is_typed():
    assert set(ENDED) == names(SHELL)


def typed(here, line, environ):
    """A line of a shell in the project, with ``fdl`` of this checkout behind it."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=here.root,
        env={**here.environ, "PATH": here.environ.get("PATH", "/usr/bin:/bin"), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", sorted(ENDED))
def test_the_line_ends_the_finding(machine, name):
    gpus, bring_about = ENDED[name]
    here = machine([card(one, bus=bus) for bus, one in enumerate(gpus, start=1)])
    environ = bring_about(here)
    remedy = here.finding(name, env=environ)["remedy"]
    ask = f"{shlex.quote(sys.executable)} -m fdl diagnose --json"
    done = typed(here, f"{remedy} && {ask}", environ)
    assert name not in [one["name"] for one in json.loads(done.stdout)["findings"]], done.stderr


def test_the_lines_that_show_more_work(machine):
    here = machine([card("8.6")])
    (here.root / "libtorch").write_text("a file")
    remedy = here.finding("store-unreadable")["remedy"]
    assert "libtorch" in typed(here, remedy, {}).stdout
    (here.root / "libtorch").unlink()
    own = variant(here.root, "builds/own", cuda="12.8", torch="2.10.0")
    libraries = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    for library in ("libtorch.so", "libc10.so"):
        shutil.copy(libraries / library, own / "lib")
    activate(here.root, "builds/own")
    program, *words = shlex.split(here.finding("architectures-unknown")["remedy"])
    assert program == "fdl"
    assert "builds/own" in here.fdl(*words, cwd=here.root, env=here.environ).out
    # The stand-in of the driver has no nvidia-smi that lists: the form of the line is what counts.
    unknown = here.finding("visibility-unknown-gpu", env={"CUDA_VISIBLE_DEVICES": "7"})
    assert unknown["remedy"] == "nvidia-smi -L"
    assert of_gpu(1, UNKNOWN, "").remedy == "nvidia-smi -q -i 1"


ADMINISTRATOR = [
    (of_driver(DRIVER_NOT_LOADED, "", container=False), ["modprobe", "nvidia"]),
    (of_driver(NO_PERMISSION, "", container=False), ["chmod", "a+rw"]),
    (of_driver(VERSION_MISMATCH, "", container=False), ["reboot"]),
    (of_driver(UNKNOWN, "", container=False), ["reboot"]),
    (SILENT, ["reboot"]),
    (of_gpu(0, GPU_IS_LOST, ""), ["reboot"]),
    (of_gpu(1, NO_PERMISSION, ""), ["chmod", "a+rw"]),
    (slices_missing(2), ["nvidia-smi", "mig", "-i", "2", "-cgi", "0", "-C"]),
    (Trouble("gpus-withheld", "", "sudo dmesg | grep -i nvrm"), ["dmesg"]),
]


def test_each_line_for_the_administrator_is_run():
    assert {trouble.kind for trouble, _ in ADMINISTRATOR} == names(ROOT)


@pytest.mark.parametrize(("trouble", "words"), ADMINISTRATOR, ids=lambda one: str(one)[:40])
def test_the_line_runs_what_it_names_as_root(tmp_path, trouble, words):
    log = tmp_path / "log"
    sudo = tmp_path / "sudo"
    sudo.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {log}\necho NVRM: Xid\n')
    sudo.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(["sh", "-c", trouble.remedy], env={"PATH": path}, cwd=tmp_path)
    assert done.returncode == 0
    assert log.read_text().splitlines()[: len(words)] == words


def test_the_line_for_withheld_gpus_is_the_one_that_was_run(tmp_path):
    pci_card(tmp_path, driver="nvidia")
    (trouble,) = troubles(tmp_path, driver_answers=True)
    assert (trouble.kind, trouble.remedy) == ("gpus-withheld", "sudo dmesg | grep -i nvrm")


def test_advice_in_words_does_not_look_like_a_command():
    for trouble in (LIBRARY_MISSING, OUTDATED):
        assert " " in trouble.remedy
        assert not trouble.remedy.startswith(("fdl ", "unset ", "export "))
    assert names(WORDS) >= {LIBRARY_MISSING.kind, OUTDATED.kind}
