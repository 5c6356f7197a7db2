"""From what was typed to a source, for GPUs that are not there."""

from pathlib import Path

import pytest
from packaging.tags import platform_tags

from fdl.base.errors import LibtorchError, UsageError
from fdl.base.hardware import Gpu, Nvidia, Trouble
from fdl.libtorch.catalog import archs_argument
from fdl.libtorch.request import Request, decide, variant_of_cuda
from fdl.libtorch.sources import Wanted
from tests.rows import each_row


def gpu(index, capability, *, visible=True):
    return Gpu(index, f"Test {index}", capability, visible=visible)


def decided(
    *gpus, driver="", restriction=None, troubles=(), cwd=Path("/"), environ=None, **request
):
    found = Nvidia(tuple(gpus), driver=driver, restriction=restriction, troubles=troubles)
    return decide(Request(**request), lambda: found, cwd, environ or {})


def nobody_asks():
    raise AssertionError("the driver was asked")


def test_without_a_card_it_is_the_cpu_variant():
    decision = decided()
    assert decision.source.wanted.variant == "cpu"
    assert decision.notes == ("no NVIDIA GPU found, so it is the variant for the processor",)
    assert decision.remedy == ""


@each_row("other", ["macosx_14_0_arm64", "win_amd64", "manylinux_2_28_ppc64le"])
def test_a_lock_may_name_wheels_for_several_systems(other):
    here = next(platform_tags())
    locked = [f"torch-2.13.0+cpu-cp311-cp311-{here}.whl", f"torch-2.13.0-cp39-none-{other}.whl"]
    assert decided(locked=locked).source.wanted == Wanted("2.13.0", "cpu")


NOT_LOADED = Trouble("driver-not-loaded", "its module is not loaded", "sudo modprobe nvidia")


@each_row("source", ["archive", "wheel"])
def test_auto_stops_at_a_gpu_whose_driver_fails_and_names_the_commands(source):
    broken = Nvidia(troubles=(NOT_LOADED,), present=True)
    with pytest.raises(LibtorchError, match="its module is not loaded") as caught:
        decide(Request(source=source), lambda: broken, Path("/"), {})
    assert "sudo modprobe nvidia" in caught.value.hint
    assert "fdl libtorch install cpu" in caught.value.hint


def test_a_driver_that_fails_on_a_machine_without_a_gpu_stops_nothing():
    idle = Nvidia(troubles=(NOT_LOADED,))
    assert decide(Request(), lambda: idle, Path("/"), {}).source.wanted.variant == "cpu"


def test_mig_mode_without_slices_is_named():
    decision = decided(gpu(0, (9, 0), visible=False))
    assert "MIG mode is on without slices for [0] Test 0 (sm_90)" in decision.notes[0]


def test_cards_that_no_archive_serves_together_lead_to_a_build():
    decision = decided(gpu(0, (6, 1)), gpu(1, (12, 0)))
    assert decision.source.wanted.variant == "cu126"
    assert "cu126 leaves out [1] Test 1 (sm_120)" in decision.notes[-1]
    assert decision.remedy == 'fdl libtorch build --archs "6.1;12.0"'


def test_hidden_cards_do_not_count():
    decision = decided(gpu(0, (6, 1), visible=False), gpu(1, (12, 0)), restriction="1")
    assert decision.source.wanted.variant == "cu128"
    assert decision.notes == (
        "chosen for [1] Test 1 (sm_120); CUDA_VISIBLE_DEVICES=1 hides 1 more",
    )


def test_with_all_cards_hidden_all_count():
    decision = decided(gpu(0, (6, 1), visible=False), restriction="")
    assert decision.source.wanted.variant == "cu126"
    assert "although CUDA_VISIBLE_DEVICES= hides them all" in decision.notes[0]


def test_an_old_driver_gets_the_cuda_it_can_run_and_a_word_about_it():
    decision = decided(gpu(0, (12, 0)), driver="570.86.10", torch="2.11.0")
    assert decision.source.wanted.variant == "cu128"
    assert "after an update of the driver" in decision.notes[-1]


def test_the_driver_is_not_asked_when_the_variant_is_named():
    for request in (Request("cpu"), Request("cu128", source="wheel")):
        decision = decide(request, nobody_asks, Path("/"), {})
        assert decision.source.wanted.variant == request.variant


def test_mirrors_come_first_and_their_passwords_stay_out_of_sight():
    environ = {"FDL_LIBTORCH_MIRROR": "https://me:secret@mirror.example/torch/"}
    shown = decided(variant="cpu", environ=environ).source.shown
    assert shown.startswith("https://mirror.example/torch/cpu/libtorch-")


@each_row(("cards", "variant"), [((), "cpu"), ((gpu(0, (7, 5)),), "cu128")])
def test_a_wheel_is_looked_for_in_the_variant_an_archive_would_have(cards, variant):
    source = decided(*cards, source="wheel").source
    assert source.title == f"libtorch {variant}"


def test_a_version_without_archives_leaves_the_variant_of_a_wheel_to_the_index():
    source = decided(gpu(0, (7, 5)), source="wheel", torch="9.9.9").source
    assert (source.title, source.wanted.variant) == ("libtorch 9.9.9", None)


def test_files_and_folders_are_taken_from_where_one_stands(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for name in ("a.zip", "folder"):
        source = decided(source=f"./{name}", cwd=tmp_path).source
        assert source.shown == str(tmp_path / name)
    with pytest.raises(UsageError, match=r"--source b\.zip: there is no such file"):
        decided(source="b.zip", cwd=tmp_path)


@each_row("variant", ["cu", "rocm", "12.8", "../x"])
def test_what_is_no_variant_is_refused_for_every_source(variant):
    for source in (None, "wheel", "https://example.org/x.zip"):
        with pytest.raises(UsageError, match=r"variant"):
            decided(variant=variant, source=source)


def test_a_driver_too_old_for_everything_is_said_so():
    with pytest.raises(LibtorchError, match="too old"):
        decided(gpu(0, (7, 5)), driver="470.1", source="wheel")


def test_what_a_build_is_asked_for():
    assert archs_argument([gpu(0, (12, 0)), gpu(1, (6, 1)), gpu(2, (6, 1))]) == "6.1;12.0"
    assert variant_of_cuda("12.8") == "cu128"
    with pytest.raises(UsageError, match="is not a CUDA version"):
        variant_of_cuda("cu128")


@each_row("text", ["http://[::1", "https://", "http://[x]/libtorch.zip"])
def test_an_invalid_address_is_an_error_of_one_line(text):
    with pytest.raises(UsageError, match="--source is not a valid address"):
        decided(source=text)
