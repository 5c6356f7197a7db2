"""Each finding of ``fdl diagnose``, brought about for real, with its remedy."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fdl.base.hardware
from fdl.base.hardware import Gpu, Nvidia, System
from fdl.libtorch.active import Variant
from fdl.libtorch.store import Store, needed_by
from fdl.machine.facts import Environment, Facts, Stock
from fdl.machine.findings import CODES, findings
from tests.fdl.diagnose.conftest import activate, environment, variant
from tests.fdl.hardware.fake_nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, card

SERVES_ALL = {"cuda": "12.8", "torch": "2.10.0", "archs": "5.0+PTX"}


def served(machine, *cards, **more):
    """A machine whose active variant serves everything."""
    here = machine(list(cards), **more)
    variant(here.root, "precompiled/cu128", **SERVES_ALL)
    activate(here.root, "precompiled/cu128")
    return here


def test_a_machine_that_fits_has_no_findings(machine):
    here = machine([card("8.6")])
    variant(here.root, "precompiled/cu128", cuda="12.8", torch="2.10.0", archs="8.6")
    activate(here.root, "precompiled/cu128")
    assert here.names() == []


def test_a_broken_manifest_is_a_finding(machine):
    here = machine()
    (here.root / "fdl.yml").write_text("commands: [unclosed\n", encoding="utf-8")
    found = here.finding("manifest-broken")
    assert (found["code"], found["severity"]) == ("FDL101", "error")
    assert "fdl.yml" in found["message"]


def test_an_environment_without_overlay_is_a_finding(machine):
    here = machine()
    found = here.finding("manifest-broken", {"FDL_ENV": "nowhere"})
    assert "nowhere" in found["message"]


@pytest.mark.parametrize("obstacle", ["libtorch", "libtorch/precompiled"])
def test_a_file_in_the_place_of_a_folder_is_a_finding(machine, obstacle):
    here = machine()
    (here.root / obstacle).parent.mkdir(exist_ok=True)
    (here.root / obstacle).write_text("", encoding="utf-8")
    found = here.finding("store-unreadable")
    assert f"{here.root / obstacle}: Not a directory" in found["message"]
    assert found["remedy"] == f"ls -ld {here.root / obstacle}"


def test_an_active_file_that_cannot_be_read_is_a_finding(machine):
    here = machine()
    (here.root / "libtorch/.active").mkdir(parents=True)
    assert "Is a directory" in here.finding("store-unreadable")["message"]
    (here.root / "libtorch/.active").rmdir()
    (here.root / "libtorch/.active").write_bytes(b"\xff\xfe\x00")
    assert "it is not a text" in here.finding("store-unreadable")["message"]


def test_a_variable_that_overrides_the_active_variant_is_a_finding(machine, tmp_path):
    here = served(machine)
    other = variant(tmp_path / "other", "precompiled/cpu")
    found = here.finding("libtorch-overridden", {"LIBTORCH": str(other)})
    assert (found["severity"], found["remedy"]) == ("warning", "unset LIBTORCH")
    own = here.root / "libtorch/precompiled/cu128"
    assert here.names({"LIBTORCH": str(own)}) == []


def test_a_variable_that_leads_nowhere_is_a_finding(machine, tmp_path):
    here = served(machine)
    assert here.names({"LIBTORCH": str(tmp_path / "gone")}) == ["libtorch-variable-broken"]


def test_a_driver_that_does_not_answer_is_a_finding_and_an_exit_code(machine):
    here = served(
        machine, card("8.6"), fail={"nvmlInitWithFlags": DRIVER_NOT_LOADED}, smi=DRIVER_NOT_LOADED
    )
    found = here.finding("driver-not-loaded")
    assert (found["code"], found["severity"]) == ("FDL202", "error")
    assert here.run().exit == 1


def test_a_lost_card_is_a_finding(machine):
    here = served(machine, card("8.6", bus=1), card("8.6", bus=2, error=GPU_IS_LOST))
    found = here.finding("gpu-lost")
    # The tests may run in a container.
    restart = ("sudo reboot", "restart the host of this container")
    assert (found["code"], found["remedy"] in restart) == ("FDL210", True)


def test_hidden_cards_are_told_and_do_not_count(machine):
    here = machine([card("8.6", bus=1), card("6.1", bus=2)])
    variant(here.root, "precompiled/cu128", cuda="12.8", torch="2.10.0", archs="8.6")
    activate(here.root, "precompiled/cu128")
    by_name = {"CUDA_VISIBLE_DEVICES": "GPU-00000001"}
    assert here.names(by_name) == ["gpus-hidden"]
    report = here.report(by_name)
    assert [one["visible"] for one in report["gpus"]] == [True, False]
    assert [one["arch_compatible"] for one in report["gpus"]] == [True, False]
    assert report["compatible"] is True
    assert "-- sm_61, 24 GB (hidden)" in here.run(env=by_name).out


def test_where_every_card_is_hidden_all_of_them_count(machine):
    here = machine([card("6.1")])
    variant(here.root, "precompiled/cu128", cuda="12.8", torch="2.10.0", archs="8.6")
    activate(here.root, "precompiled/cu128")
    assert here.names({"CUDA_VISIBLE_DEVICES": ""}) == ["gpu-uncovered", "all-gpus-hidden"]


def test_an_entry_that_names_no_card_is_a_finding(machine):
    here = served(machine, card("8.6"))
    assert "visibility-unknown-gpu" in here.names({"CUDA_VISIBLE_DEVICES": "0,4"})


def test_indices_that_may_mean_other_cards_are_a_finding(machine):
    here = served(machine, card("8.6", bus=1), card("6.1", bus=2))
    first = {"CUDA_VISIBLE_DEVICES": "0"}
    assert here.finding("gpu-order", first)["remedy"] == "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    assert "gpu-order" not in here.names({**first, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


def test_without_an_active_variant_the_remedy_is_the_next_step(machine):
    here = machine()
    (here.root / "Cargo.toml").write_text('[dependencies]\ntch = "0.17"\n')
    assert here.finding("no-active-variant")["message"].endswith("; Cargo.toml needs one")
    assert here.finding("no-active-variant")["remedy"] == "fdl libtorch install"
    variant(here.root, "builds/sm61", archs="6.1")
    activate(here.root, "")
    assert here.finding("no-active-variant")["remedy"] == "fdl libtorch activate builds/sm61"


def test_in_a_project_that_needs_no_libtorch_a_missing_one_is_no_finding(machine):
    here = machine([card("8.6")])
    assert here.names() == []
    assert here.run().exit == 0
    assert here.report()["libtorch_needed_by"] is None
    text = here.run().out
    assert "Active     none, and none is needed\n" in text
    assert "Compatibility" not in text


NEEDS = {
    "Cargo.toml": "[package]\nname = 'x'\n[dependencies.torch-sys]\nversion = '0.17'\n",
    "native/Cargo.toml": "[dependencies]\nserde = '1'\n  tch.workspace = true\n",
    "cpp/CMakeLists.txt": "project(x)\nfind_package( Torch REQUIRED)\n",
    "fdl.yml": "commands: {hello: {run: fdl libtorch exec -- ./hello}}\n",
    "docker-compose.yml": "services: {dev: {volumes: ['${LIBTORCH_CPU_PATH}:/l']}}\n",
    "libtorch.lock": "{}",
}
NEEDS_NOT = {
    "Cargo.toml": "[dependencies]\nmatch = '1'\n# tch = '0.17'\n",
    "CMakeLists.txt": "# find_package(Torch)\nfind_package(TorchVision)\nfind_package(OpenMP)\n",
    "fdl.yml": "commands: {hello: {run: echo hello}} # without libtorch\n",
    "a/b/Cargo.toml": "[dependencies]\ntch = '0.17'\n",
    ".hidden/Cargo.toml": "[dependencies]\ntch = '0.17'\n",
    "pyproject.toml": "[project]\ndependencies = ['torch']\n",
}


@pytest.mark.parametrize("file", NEEDS)
def test_a_file_that_uses_libtorch_makes_a_missing_one_a_finding(machine, file):
    here = machine()
    (here.root / file).parent.mkdir(exist_ok=True)
    (here.root / file).write_text(NEEDS[file])
    assert here.names() == ["no-active-variant"]
    assert here.report()["libtorch_needed_by"] == file
    assert here.run().exit == 1


def test_files_that_do_not_use_libtorch_show_no_need(project, tmp_path):
    assert needed_by(project(NEEDS_NOT)) == ""
    assert needed_by(tmp_path / "nowhere") == ""


@pytest.mark.parametrize("named", ["precompiled/cu126", "../outside", "nonsense"])
def test_an_active_variant_that_is_gone_is_a_finding(machine, named):
    here = machine()
    activate(here.root, named)
    assert (
        f"names `{named}`, which is not installed"
        in here.finding("active-variant-missing")["message"]
    )
    assert here.report()["libtorch"] is None


@pytest.mark.parametrize("facts", [{}, {"cuda": "12.8"}, {"archs": "mystery"}])
def test_a_variant_that_does_not_say_what_it_serves_is_a_finding(machine, facts):
    here = machine([card("8.6")])
    variant(here.root, "builds/own", **facts)
    activate(here.root, "builds/own")
    assert here.names() == ["architectures-unknown"]
    report = here.report()
    assert (report["gpus"][0]["arch_compatible"], report["compatible"]) == (None, None)
    assert report["libtorch"]["archs"] == facts.get("archs")
    assert "[0] NVIDIA Test 8.6 (sm_86): unknown" in here.run().out


@pytest.mark.parametrize(
    ("cards", "remedy"),
    [
        (["7.5"], "fdl libtorch install cu128"),
        (["6.1"], "fdl libtorch install cu126"),
        (["12.0", "6.1"], 'fdl libtorch build --archs "6.1;12.0"'),
    ],
)
def test_the_remedy_for_an_uncovered_card_is_the_smallest(machine, cards, remedy):
    here = machine([card(one, bus=bus) for bus, one in enumerate(cards, start=1)])
    variant(here.root, "precompiled/cpu", cuda="none", torch="2.10.0", archs="cpu")
    activate(here.root, "precompiled/cpu")
    found = [one for one in here.report()["findings"] if one["name"] == "gpu-uncovered"]
    assert [one["remedy"] for one in found] == [remedy] * len(cards)
    assert "it is made for the processor alone" in found[0]["message"]


def test_the_remedy_keeps_to_the_version_in_use(machine):
    here = machine([card("7.5")], driver="580.65.06")
    variant(here.root, "precompiled/cpu", cuda="none", torch="2.13.0", archs="cpu")
    activate(here.root, "precompiled/cpu")
    assert here.finding("gpu-uncovered")["remedy"] == "fdl libtorch install cu132 --torch 2.13.0"


def test_a_driver_too_old_for_the_variant_is_a_finding(machine):
    here = machine([card("8.6")], driver="570.86.10")
    variant(here.root, "precompiled/cu130", cuda="13.0", torch="2.13.0", archs="8.6")
    activate(here.root, "precompiled/cu130")
    found = here.finding("driver-too-old")
    assert "driver 580.65.06 or newer; this one is 570.86.10" in found["message"]
    assert found["remedy"] == "fdl libtorch install cu126 --torch 2.13.0"


def test_a_driver_that_keeps_a_card_from_every_variant_is_to_be_updated(machine):
    here = machine([card("12.0")], driver="570.86.10")
    variant(here.root, "precompiled/cu130", cuda="13.0", torch="2.13.0", archs="12.0")
    activate(here.root, "precompiled/cu130")
    assert here.finding("driver-too-old")["remedy"] == "update the NVIDIA driver"


def test_a_driver_too_old_for_every_cuda_build_is_a_finding(machine):
    here = machine([card("8.9", "NVIDIA GeForce RTX 4090")], driver="470.256.02", cuda="11.4")
    found = here.finding("driver-without-pytorch")
    assert "470.256.02 (CUDA 11.4) is too old" in found["message"]
    assert found["remedy"].endswith(" to 525.60.13 or newer")
    variant(here.root, "precompiled/cu128", cuda="12.8", torch="2.10.0", archs="8.9")
    activate(here.root, "precompiled/cu128")
    assert here.names() == ["driver-too-old"]
    assert "525.60.13 or newer" in here.finding("driver-too-old")["message"]


def test_a_torch_without_cuda_beside_a_card_is_a_finding(machine):
    here = served(machine, card("5.0"))
    environment(here.root, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    found = here.finding("torch-without-cuda")
    assert (found["severity"], found["remedy"]) == ("warning", "fdl setup")
    planned = here.fdl("setup", "--dry-run", cwd=here.root, env=here.environ).out
    assert "--force-reinstall" in planned
    assert "whl/cu128" in planned


def test_a_driver_too_old_for_torch_is_a_finding(machine):
    here = served(machine, card("5.0"), driver="570.86.10")
    environment(here.root, "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    assert here.names() == ["torch-driver-too-old"]


def facts(**system: bool) -> Facts:
    """A machine as it is where the tests cannot run."""
    served_card = Gpu(0, "NVIDIA Test", (8, 6))
    own = Variant("precompiled/cu128", "/store/cu128", {"archs": "8.6", "cuda": "12.8"})
    return Facts(
        stock=Stock(Store(Path("/store"), "global"), (own,), own.id, own),
        system=System("Linux", "cpu", 1, 1 << 30, **system),
        nvidia=Nvidia((served_card,), "528.40", "12.8", "nvml") if system else Nvidia(),
        environment=Environment("/usr/bin/python3", "3.12.4", None),
    )


def test_in_wsl_the_driver_is_that_of_windows():
    assert [one.name for one in findings(facts(wsl=True))] == ["wsl"]
    assert [one.name for one in findings(facts(container=True))] == []


def test_every_trouble_of_the_hardware_has_a_code():
    kinds = set()
    for file in Path(fdl.base.hardware.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Trouble":
                assert isinstance(node.args[0], ast.Constant)
                kinds.add(node.args[0].value)
    assert len(kinds) > 10
    assert kinds <= set(CODES)


def test_codes_are_unique_and_ascend():
    numbers = [one.id for one in CODES.values()]
    assert numbers == sorted(set(numbers))
