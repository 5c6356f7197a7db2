"""What the GPUs are: the real pynvml on a driver of our own, then ``nvidia-smi``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fdl.base.hardware import gpus
from tests import fork_server
from tests.fdl.hardware.fake_nvml import (
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    UNKNOWN,
    VERSION_MISMATCH,
    Slice,
    card,
    nvidia,
    only_smi,
    without_nvidia,
)

_QUESTION = """
import dataclasses, json, sys
from pathlib import Path
from fdl.base.hardware import nvidia
found = nvidia(root=Path(sys.argv[1]))
print(json.dumps({**dataclasses.asdict(found), "problem": found.problem}))
"""


def seen(environ: Mapping[str, str], root: Path) -> dict[str, Any]:
    """What a process with these variables finds, where ``root`` is the whole file system."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
    words = ("-c", _QUESTION, str(root))
    done = fork_server.python(*words, env={**own, **environ}, abrupt=True)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kinds(found: Mapping[str, Any]) -> list[str]:
    return [one["kind"] for one in found["troubles"]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system without any trace of NVIDIA."""
    return tmp_path / "root"


def write(root: Path, name: str, text: str = "") -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_a_machine_without_nvidia_is_an_answer(tmp_path, root):
    found = seen(without_nvidia(tmp_path / "nvidia"), root)
    assert found == {
        "gpus": [],
        "driver": "",
        "cuda": "",
        "source": "",
        "troubles": [],
        "problem": "",
        "restriction": None,
        "present": False,
    }


def test_a_driver_without_cards_is_an_answer(tmp_path, root):
    found = seen(nvidia(tmp_path / "nvidia"), root)
    assert (found["gpus"], found["source"], found["driver"]) == ([], "nvml", "570.86.10")
    assert found["troubles"] == []


def test_one_card_is_told_in_full(tmp_path, root):
    found = seen(nvidia(tmp_path / "nvidia", [card("8.6", "NVIDIA GeForce RTX 3090")]), root)
    assert found["gpus"] == [
        {
            "index": 0,
            "name": "NVIDIA GeForce RTX 3090",
            "capability": [8, 6],
            "memory": 24 * GIB,
            "uuid": "GPU-00000001-0000-4000-8000-000008000006",
            "pci": "00000000:01:00.0",
            "visible": True,
            "mig": False,
        }
    ]
    assert (found["source"], found["driver"], found["cuda"]) == ("nvml", "570.86.10", "12.8")
    assert found["problem"] == ""


@pytest.mark.parametrize("ask", [nvidia, only_smi])
def test_mixed_cards_are_numbered_along_the_bus(tmp_path, root, ask):
    listed = [card("6.1", bus=1), card("12.0", bus=0x41, memory=32 * GIB)]
    found = seen(ask(tmp_path / "nvidia", listed, driver="580.65.06", cuda="13.0"), root)
    assert [(one["index"], one["capability"], one["memory"]) for one in found["gpus"]] == [
        (0, [6, 1], 24 * GIB),
        (1, [12, 0], 32 * GIB),
    ]
    assert (found["driver"], found["cuda"]) == ("580.65.06", "13.0")


def test_the_order_of_the_bus_counts_where_nvml_lists_another(tmp_path, root):
    found = seen(nvidia(tmp_path / "nvidia", [card("9.0", bus=7), card("6.1", bus=2)]), root)
    assert [(one["index"], one["capability"]) for one in found["gpus"]] == [
        (0, [6, 1]),
        (1, [9, 0]),
    ]


@pytest.mark.parametrize(
    ("code", "kind", "words", "remedy"),
    [
        (DRIVER_NOT_LOADED, "driver-not-loaded", "not loaded", "sudo modprobe nvidia"),
        (NO_PERMISSION, "driver-permission", "/dev/nvidia*", "sudo chmod a+rw /dev/nvidia*"),
        (VERSION_MISMATCH, "driver-mismatch", "has been updated", "sudo reboot"),
        (UNKNOWN, "driver-failure", "the NVIDIA driver fails", "sudo reboot"),
    ],
)
def test_a_driver_that_refuses_is_told_with_its_remedy(tmp_path, root, code, kind, words, remedy):
    broken = nvidia(tmp_path / "nvidia", [card("8.6")], fail={"nvmlInitWithFlags": code}, smi=code)
    found = seen(broken, root)
    assert (found["gpus"], found["source"], kinds(found)) == ([], "", [kind])
    assert words in found["problem"]
    assert remedy in found["problem"]


def test_a_driver_that_fails_after_it_has_begun_is_told(tmp_path, root):
    found = seen(
        nvidia(tmp_path / "n", [card("8.6")], fail={"nvmlDeviceGetCount_v2": UNKNOWN}), root
    )
    assert (found["gpus"], kinds(found)) == ([], ["driver-failure"])


def test_in_a_container_the_remedy_is_to_start_it_with_the_card(tmp_path, root):
    write(root, ".dockerenv")
    refusing = {"nvmlInitWithFlags": DRIVER_NOT_LOADED}
    found = seen(nvidia(tmp_path / "nvidia", fail=refusing), root)
    assert "docker run --gpus all" in found["problem"]


@pytest.mark.parametrize("code", [VERSION_MISMATCH, UNKNOWN])
def test_in_a_container_the_host_is_to_be_restarted(tmp_path, root, code):
    write(root, ".dockerenv")
    found = seen(nvidia(tmp_path / "n", fail={"nvmlInitWithFlags": code}), root)
    assert [one["remedy"] for one in found["troubles"]] == ["restart the host of this container"]


def test_in_a_container_slices_are_made_on_the_host(tmp_path, root):
    write(root, ".dockerenv")
    found = seen(nvidia(tmp_path / "n", [card("8.0", slices=[])]), root)
    (trouble,) = found["troubles"]
    assert trouble["remedy"].startswith("on the host of this container: sudo nvidia-smi mig")


def test_a_lost_card_leaves_the_others_and_their_numbers(tmp_path, root):
    cards = [card("8.0", bus=1), card("8.0", bus=2, error=GPU_IS_LOST), card("9.0", bus=3)]
    found = seen(nvidia(tmp_path / "nvidia", cards), root)
    assert [(one["index"], one["capability"]) for one in found["gpus"]] == [
        (0, [8, 0]),
        (2, [9, 0]),
    ]
    assert kinds(found) == ["gpu-lost"]
    assert found["problem"].startswith("GPU 1 does not answer any more")


def test_a_card_this_user_may_not_use_is_told(tmp_path, root):
    cards = [card("8.0", bus=1), card("8.0", bus=2, error=NO_PERMISSION)]
    found = seen(nvidia(tmp_path / "nvidia", cards), root)
    assert (len(found["gpus"]), kinds(found)) == (1, ["gpu-permission"])
    assert "sudo chmod a+rw /dev/nvidia1" in found["problem"]


def test_what_the_driver_does_not_tell_is_left_empty(tmp_path, root):
    silent = ("Name", "UUID", "PciInfo_v3", "MemoryInfo", "MigMode")
    fail = {f"nvmlDeviceGet{name}": UNKNOWN for name in silent}
    fail["nvmlSystemGetDriverVersion"] = fail["nvmlSystemGetCudaDriverVersion"] = UNKNOWN
    found = seen(nvidia(tmp_path / "nvidia", [card("8.6")], fail=fail), root)
    (gpu,) = found["gpus"]
    assert (gpu["name"], gpu["uuid"], gpu["pci"], gpu["memory"]) == ("NVIDIA GPU", "", "", 0)
    assert (gpu["capability"], found["driver"], found["cuda"]) == ([8, 6], "", "")
    assert found["troubles"] == []


def test_slices_stand_for_a_card_whose_mig_mode_is_on(tmp_path, root):
    slices = [Slice("MIG-11111111"), Slice("MIG-22222222", memory=10 * GIB)]
    cards = [card("8.0", bus=1, slices=slices), card("7.5", bus=2)]
    found = seen(nvidia(tmp_path / "nvidia", cards), root)
    assert [(one["index"], one["mig"], one["capability"]) for one in found["gpus"]] == [
        (0, True, [8, 0]),
        (0, True, [8, 0]),
        (1, False, [7, 5]),
    ]
    assert [one["uuid"] for one in found["gpus"][:2]] == ["MIG-11111111", "MIG-22222222"]
    assert [one["memory"] for one in found["gpus"][:2]] == [5 * GIB, 10 * GIB]


@pytest.mark.parametrize("ask", [nvidia, only_smi])
def test_mig_mode_without_slices_hides_the_card(tmp_path, root, ask):
    found = seen(ask(tmp_path / "nvidia", [card("8.0", slices=[])]), root)
    assert [(one["mig"], one["visible"]) for one in found["gpus"]] == [(False, False)]
    assert kinds(found) == ["mig-without-slices"]


def test_nvidia_smi_answers_where_the_library_cannot_be_loaded(tmp_path, root):
    listed = [card("8.6", "NVIDIA RTX A6000, Laptop"), card("9.0", bus=2, slices=[Slice("MIG-77")])]
    found = seen(only_smi(tmp_path / "nvidia", listed), root)
    assert (found["source"], found["driver"], found["cuda"]) == ("nvidia-smi", "570.86.10", "12.8")
    assert [(one["name"], one["uuid"], one["mig"]) for one in found["gpus"]] == [
        ("NVIDIA RTX A6000, Laptop", "GPU-00000001-0000-4000-8000-000008000006", False),
        ("NVIDIA Test 9.0 MIG 1g.5gb", "MIG-77", True),
    ]
    assert found["gpus"][0]["memory"] == 24 * GIB


def test_newer_drivers_call_their_cuda_version_by_another_name(tmp_path, root):
    found = seen(only_smi(tmp_path / "n", [card("8.6")], driver="610.43.02", cuda="13.3"), root)
    assert (found["driver"], found["cuda"]) == ("610.43.02", "13.3")


def test_a_card_that_nvidia_smi_has_lost_leaves_the_others(tmp_path, root):
    cards = [card("8.0", bus=1), card("8.0", bus=2, error=GPU_IS_LOST)]
    found = seen(only_smi(tmp_path / "nvidia", cards), root)
    assert ([one["index"] for one in found["gpus"]], kinds(found)) == ([0], ["gpu-lost"])


def test_nvidia_smi_that_does_not_know_the_question_is_too_old(tmp_path, root):
    environ = without_nvidia(tmp_path / "nvidia")
    smi = tmp_path / "nvidia/bin/nvidia-smi"
    words = 'Field "compute_cap" is not a valid field to query.'
    smi.write_text(f"#!/bin/sh\necho '{words}'\nexit 2\n", encoding="utf-8")
    assert kinds(seen(environ, root)) == ["driver-outdated"]


def test_nvidia_smi_that_hangs_is_ended(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n/bin/sleep 60\n", encoding="utf-8")
    program.chmod(0o755)
    found = gpus.read_smi({"PATH": str(tmp_path)}, tmp_path / "root", patience=0.3)
    assert [one.kind for one in found.troubles] == ["driver-silent"]


def test_nvidia_smi_answers_where_the_library_refuses(tmp_path, root):
    refusing = {"nvmlInitWithFlags": UNKNOWN}
    found = seen(nvidia(tmp_path / "nvidia", [card("8.6")], fail=refusing, smi=0), root)
    assert (found["source"], len(found["gpus"]), found["troubles"]) == ("nvidia-smi", 1, [])


def test_the_exit_code_of_nvidia_smi_names_the_trouble(tmp_path, root):
    absent = {"nvmlInitWithFlags": LIBRARY_NOT_FOUND}
    for code, kind in [(9, "driver-not-loaded"), (12, "library-missing"), (18, "driver-mismatch")]:
        found = seen(nvidia(tmp_path / f"n{code}", fail=absent, smi=code), root)
        assert kinds(found) == [kind]


def test_wsl_keeps_its_nvidia_smi_off_the_path(tmp_path, root):
    environ = only_smi(tmp_path / "nvidia", [card("8.9")])
    folder = root / "usr/lib/wsl/lib"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(tmp_path / "nvidia/bin")
    found = seen({**environ, "PATH": str(Path(sys.executable).parent)}, root)
    assert [one["capability"] for one in found["gpus"]] == [[8, 9]]


def test_wsl_keeps_its_library_from_the_loader(tmp_path, root):
    environ = nvidia(tmp_path / "nvidia", [card("8.9")])
    folder = root / "usr/lib/wsl/lib"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(environ["LD_LIBRARY_PATH"].split(os.pathsep)[0])
    found = seen({**environ, "LD_LIBRARY_PATH": ""}, root)
    if found["driver"] not in ("", "570.86.10"):
        pytest.skip("this machine has an NVIDIA library of its own")
    assert (found["source"], [one["capability"] for one in found["gpus"]]) == ("nvml", [[8, 9]])


def pci_card(root: Path, address: str = "0000:01:00.0", driver: str = "") -> None:
    device = root / "sys/bus/pci/devices" / address
    write(device, "vendor", "0x10de\n")
    write(device, "class", "0x030000\n")
    if driver:
        (device / "driver").symlink_to(f"../../drivers/{driver}")


def test_a_card_without_a_driver_is_told(tmp_path, root):
    pci_card(root)
    found = seen(without_nvidia(tmp_path / "nvidia"), root)
    assert (found["gpus"], kinds(found)) == ([], ["driver-missing"])
    assert "0000:01:00.0" in found["problem"]


def test_a_gpu_whose_driver_fails_is_still_present(tmp_path, root):
    pci_card(root)
    failing = nvidia(tmp_path / "n", fail={"nvmlInitWithFlags": UNKNOWN})
    found = seen(failing, root)
    assert (found["gpus"], found["present"], kinds(found)) == ([], True, ["driver-failure"])
    # On the same driver without any GPU, nothing is missing.
    assert seen(failing, tmp_path / "empty")["present"] is False


@pytest.mark.parametrize("file", ["dev/nvidia0", "proc/driver/nvidia/version"])
def test_files_of_the_driver_show_a_gpu(tmp_path, root, file):
    write(root, file)
    assert seen(without_nvidia(tmp_path / "n"), root)["present"] is True


def test_a_card_given_to_a_virtual_machine_is_no_trouble(tmp_path, root):
    pci_card(root, driver="vfio-pci")
    assert seen(without_nvidia(tmp_path / "nvidia"), root)["troubles"] == []


def test_a_container_that_was_not_given_the_card_is_told(tmp_path, root):
    pci_card(root)
    write(root, ".dockerenv")
    assert kinds(seen(without_nvidia(tmp_path / "n"), root)) == ["container-without-gpus"]


def test_a_running_driver_without_its_library_is_told(tmp_path, root):
    write(root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  570.86.10\n")
    assert kinds(seen(without_nvidia(tmp_path / "nvidia"), root)) == ["library-missing"]


def test_a_driver_that_offers_none_of_the_cards_is_told(tmp_path, root):
    pci_card(root, driver="nvidia")
    assert kinds(seen(nvidia(tmp_path / "nvidia"), root)) == ["gpus-withheld"]


def test_visibility_is_respected_and_shown(tmp_path, root):
    cards = [card("8.0", bus=1), card("9.0", bus=2)]
    environ = {**nvidia(tmp_path / "nvidia", cards), "CUDA_VISIBLE_DEVICES": "1"}
    found = seen(environ, root)
    assert [one["visible"] for one in found["gpus"]] == [False, True]
    assert found["restriction"] == "1"
