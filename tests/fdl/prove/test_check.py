"""``fdl libtorch check`` as it is typed."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.fdl.hardware.fake_nvml import card, nvidia, without_nvidia
from tests.fdl.prove.cuda import compile_library, container, embed, ptx, sass

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="makes ELF libraries")

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "libtorch-check.md"


@pytest.fixture
def machine(tmp_path):
    """The variables of a machine with these GPUs, and with a store of its own."""

    def make(*capabilities, **more):
        folder = tmp_path / "nvidia"
        cards = [card(one, bus=number + 1) for number, one in enumerate(capabilities)]
        found = nvidia(folder, cards, **more) if cards else without_nvidia(folder)
        return {**found, "FLODL_HOME": str(tmp_path / "home")}

    return make


def variant(root, id, section, build_version):
    folder = root / "libtorch" / id
    embed(folder, {".nv_fatbin": section} if section else {".note.x": b"x"}, "libtorch.so")
    for file in folder.glob("libtorch.so.*"):
        file.unlink()
    (folder / "build-version").write_text(build_version)
    return folder


def test_the_active_variant_is_checked_for_the_cards_of_this_machine(tmp_path, fdl, machine):
    home = tmp_path / "home"
    variant(home, "precompiled/cu128", container(sass(80), sass(90)), "2.10.0+cu128")
    (home / "libtorch" / ".active").write_text("precompiled/cu128\n")
    session = fdl("libtorch", "check", env=machine("8.6", "9.0"))
    assert session.exit == 0, session.out + session.err
    assert session.out.startswith(f"libtorch 2.10.0+cu128 in {home}/libtorch/precompiled/cu128")
    assert "(precompiled/cu128)" in session.out
    assert "CUDA      12.8 (from build-version); driver 525.60.13 or newer" in session.out
    assert "GPU code  8.0 9.0" in session.out
    assert "NVIDIA Test 8.6 (sm_86): native" in session.out
    assert "NVIDIA Test 9.0 (sm_90): native" in session.out


def test_a_card_that_is_not_served_fails_the_check_and_the_remedy_is_named(tmp_path, fdl, machine):
    home = tmp_path / "home"
    variant(home, "precompiled/cu128", container(sass(80), sass(120)), "2.10.0+cu128")
    session = fdl("libtorch", "check", "precompiled/cu128", env=machine("6.1", "12.0"))
    assert session.exit == 1
    assert "NVIDIA Test 6.1 (sm_61): impossible" in session.out
    assert "libtorch.so has neither machine code nor PTX for sm_61" in session.out
    assert 'To serve every GPU: fdl libtorch build --archs "6.1;12.0"' in session.out


def test_cards_named_on_the_command_line_count_instead_of_those_of_the_machine(
    tmp_path, fdl, machine
):
    folder = embed(tmp_path / "kit", {".nv_fatbin": container(sass(80), ptx(90))}, "libkit.so")
    session = fdl("libtorch", "check", str(folder), "--archs", "8.9;12.0", env=machine("6.1"))
    assert session.exit == 0, session.out
    assert "compute capability 8.9 (sm_89): native" in session.out
    assert "compute capability 12.0 (sm_120): JIT from PTX" in session.out
    assert "sm_61" not in session.out


def test_without_cards_the_facts_alone_are_printed(tmp_path, fdl, machine):
    folder = embed(tmp_path / "kit", {".nv_fatbin": container(sass(80))}, "libkit.so")
    session = fdl("libtorch", "check", str(folder), env=machine())
    assert session.exit == 0, session.out + session.err
    assert "GPU code  8.0" in session.out
    assert "GPUs" not in session.out


def test_a_driver_too_old_for_the_ptx_fails_the_check(tmp_path, fdl, machine):
    section = container(sass(80), ptx(80, isa=(8, 7)))
    folder = embed(tmp_path / "kit", {".nv_fatbin": section}, "libkit.so")
    session = fdl(
        "libtorch", "check", str(folder), env=machine("12.0", driver="550.54.14", cuda="12.4")
    )
    assert session.exit == 1
    assert "takes a driver for CUDA 12.8 or newer, and 550.54.14 is for 12.4" in session.out
    assert "To serve every GPU: update the NVIDIA driver" in session.out


def test_hidden_cards_are_left_out_and_that_is_said(tmp_path, fdl, machine):
    folder = embed(tmp_path / "kit", {".nv_fatbin": container(sass(80))}, "libkit.so")
    env = {**machine("8.6", "6.1"), "CUDA_VISIBLE_DEVICES": "0"}
    session = fdl("libtorch", "check", str(folder), env=env)
    assert session.exit == 0, session.out
    assert "sm_61" not in session.out
    assert "CUDA_VISIBLE_DEVICES=0 keeps 1 of 2 GPUs out" in session.err


def test_a_missing_library_fails_the_check_also_without_cards(tmp_path, fdl, machine):
    source = tmp_path / "c.c"
    source.write_text("int one() { return 1; }")
    gone = compile_library(tmp_path / "libcublas.so.12", source)
    (tmp_path / "kit" / "lib").mkdir(parents=True)
    compile_library(tmp_path / "kit" / "lib" / "libuser.so", "-Wl,--no-as-needed", gone)
    gone.unlink()
    session = fdl("libtorch", "check", "kit", env=machine())
    assert session.exit == 1
    assert "libcublas.so.12 (needed by libuser.so) is missing" in session.out
    assert "fdl libtorch install" in session.out


def test_damaged_gpu_code_fails_the_check_and_names_file_and_place(tmp_path, fdl, machine):
    section = bytearray(container(sass(80)) + container(sass(90)))
    section[0] ^= 0xFF
    folder = embed(tmp_path / "kit", {".nv_fatbin": bytes(section)}, "libkit.so")
    session = fdl("libtorch", "check", str(folder), env=machine())
    assert session.exit == 1
    assert f"{folder}/lib/libkit.so: its GPU code is damaged at offset" in session.out
    assert "GPU code  9.0" in session.out


def test_json_has_the_documented_keys_and_no_others(tmp_path, fdl, machine):
    folder = embed(tmp_path / "kit", {".nv_fatbin": container(sass(80), ptx(90))}, "libkit.so")
    session = fdl("libtorch", "check", str(folder), "--json", env=machine("8.6", "6.1"))
    assert session.exit == 1
    found = json.loads(session.out)
    documented = re.findall(r"^\| `([a-z_]+)` \|", REFERENCE.read_text(), re.MULTILINE)
    assert sorted(found) == sorted(documented)
    assert found["schema_version"] == 1
    assert found["ok"] is False
    assert found["archs"] == ["8.0", "9.0+PTX"]
    assert found["cuda"] == {
        "version": "12.8",
        "origin": "PTX 8.7 in libkit.so",
        "driver": "525.60.13",
    }
    assert [one["verdict"] for one in found["gpus"]] == ["native", "impossible"]
    assert found["gpus"][0]["uuid"].startswith("GPU-")
    assert found["libraries"][0]["code"] == [
        {"name": "sm_80", "translation_units": 1},
        {"name": "compute_90", "translation_units": 1},
    ]
    assert found["missing"] == found["problems"] == found["unmet"] == []
    assert found["remedy"].startswith("compile it for these GPUs: nvcc ")


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        ([], 1, "no libtorch variant is active", "fdl libtorch install"),
        (["nowhere"], 1, "cannot read", "fdl libtorch check DIR"),
        (["builds/sm61"], 1, "builds/sm61 is not installed", "fdl libtorch install"),
        (["kit", "--archs", "x"], 2, "`x` is not a GPU architecture", "fdl diagnose"),
    ],
)
def test_what_cannot_be_checked_is_an_error_with_a_remedy(
    tmp_path, fdl, machine, arguments, code, message, hint
):
    (tmp_path / "kit").mkdir()
    session = fdl("libtorch", "check", *arguments, env=machine())
    assert session.exit == code
    assert session.out == ""
    assert f"error: {message}" in session.err
    assert hint in session.err


def test_torch_is_never_imported(tmp_path, fdl, machine):
    trap = tmp_path / "trap" / "torch"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("raise SystemExit('torch was imported')")
    folder = embed(tmp_path / "kit", {".nv_fatbin": container(sass(80))}, "libkit.so")
    env = {**machine(), "PYTHONPATH": str(trap.parent)}
    session = fdl("libtorch", "check", str(folder), env=env)
    assert session.exit == 0, session.err
