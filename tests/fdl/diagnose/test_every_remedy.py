"""Every kind of finding, and how its remedy is proved; a new kind needs a row."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fdl.base.hardware import Nvidia, Trouble
from fdl.base.hardware.troubles import (
    DRIVER_NOT_LOADED,
    GIVE_TO_CONTAINER,
    GPU_IS_LOST,
    INSUFFICIENT_POWER,
    LIBRARY_MISSING,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    OUTDATED,
    SILENT,
    UNKNOWN,
    VERSION_MISMATCH,
    of_driver,
    of_gpu,
    slices_missing,
    troubles,
)
from fdl.machine.findings import CODES, installation
from tests.fdl.diagnose import test_remedies
from tests.fdl.diagnose.conftest import activate, environment, variant
from tests.fdl.hardware.fake_nvml import card
from tests.fdl.hardware.test_gpus import pci_card
from tests.rows import each_row

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


@each_row(("trouble", "words"), ADMINISTRATOR, ids=lambda one: str(one)[:40])
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


def too_old_for_pytorch(here):
    del here


def too_old_for_torch(here):
    environment(here.root, "__version__ = '2.13.0+cu130'\ncuda = '13.0'\n")


@pytest.mark.parametrize(
    ("name", "driver", "bring_about"),
    [
        ("driver-without-pytorch", "470.256.02", too_old_for_pytorch),
        ("torch-driver-too-old", "570.86.10", too_old_for_torch),
    ],
)
def test_the_driver_that_the_advice_names_ends_the_finding(machine, name, driver, bring_about):
    here = machine([card("8.9")], driver=driver)
    bring_about(here)
    advice = re.fullmatch(
        r"update the NVIDIA driver(?: of the host)? to ([\d.]+) or newer",
        here.finding(name)["remedy"],
    )
    here.environ["FAKE_NVML_DRIVER"] = advice[1]
    assert name not in here.names()


def test_a_driver_too_old_for_all_archives_names_the_build_that_works(machine):
    here = machine([card("8.9")], driver="470.256.02")
    (here.root / "libtorch.lock").write_text("{}", encoding="utf-8")
    remedy = here.finding("no-active-variant")["remedy"]
    update, _, line = remedy.partition(", or use the processor alone: ")
    assert update == "update the driver"
    assert "libtorch/precompiled/cpu" in dry_run(here, line)


def test_with_a_driver_that_fails_two_lines_install(machine):
    broken = of_driver(VERSION_MISMATCH, "", container=False)
    advice = installation(Nvidia(present=True, troubles=(broken,)))
    lines = re.fullmatch(r"repair the driver, then: (.*); or at once: (.*)", advice)
    # The first line is for the time after the repair.
    here = machine([card("8.6")])
    assert "libtorch/precompiled/cu128" in dry_run(here, lines[1])
    here.environ["FAKE_NVML_FAIL"] = "nvmlInitWithFlags=18"
    assert "libtorch/precompiled/cpu" in dry_run(here, lines[2])


def test_no_torch_is_proposed_that_the_driver_could_not_run(machine):
    here = machine([card("8.9")], driver="470.256.02")
    environment(here.root, "__version__ = '2.13.0+cpu'\ncuda = None\n")
    assert here.names() == ["driver-without-pytorch"]


def dry_run(here, line):
    program, *words = shlex.split(line)
    done = here.fdl(*words, "--dry-run", cwd=here.root, env=here.environ)
    assert (program, done.exit) == ("fdl", 0), done.err
    return done.out


def test_the_advice_on_a_broken_manifest_ends_the_finding(machine):
    here = machine()
    manifest = here.root / "fdl.yml"
    manifest.write_text("commands: {hello: {rum: echo hello}}\n", encoding="utf-8")
    found = here.finding("manifest-broken")
    assert (found["remedy"], "fdl.yml:1" in found["message"]) == (None, True)
    right = re.search(r"did you mean `(\w+)`", found["message"])[1]
    manifest.write_text(manifest.read_text().replace("rum", right), encoding="utf-8")
    assert here.names() == []


ADVICE = {
    LIBRARY_MISSING: "install the driver's package again",
    OUTDATED: "update the NVIDIA driver",
    of_gpu(0, INSUFFICIENT_POWER, ""): "switch the machine off",
    of_driver(DRIVER_NOT_LOADED, "", container=True): "start the container with",
    of_driver(LIBRARY_NOT_FOUND, "", container=True): "start the container with",
}


@each_row(("trouble", "begin"), ADVICE.items(), ids=lambda one: str(one)[:40])
def test_advice_in_words_does_not_look_like_a_command(trouble, begin):
    assert trouble.remedy.startswith(begin)
    assert shutil.which(trouble.remedy.split()[0]) is None or begin.startswith("install")


def test_each_advice_in_words_is_tested(tmp_path):
    pci_card(tmp_path)
    (driver,) = troubles(tmp_path, driver_answers=False)
    assert (driver.kind, driver.remedy) == (
        "driver-missing",
        "install the driver that your distribution packages, then restart",
    )
    (tmp_path / ".dockerenv").touch()
    (container,) = troubles(tmp_path, driver_answers=False)
    assert (container.kind, container.remedy) == ("container-without-gpus", GIVE_TO_CONTAINER)
    elsewhere = {"driver-without-pytorch", "torch-driver-too-old", "manifest-broken"}
    shown = {trouble.kind for trouble in ADVICE if trouble.remedy != GIVE_TO_CONTAINER}
    assert shown | elsewhere | {driver.kind, container.kind} == names(WORDS)
