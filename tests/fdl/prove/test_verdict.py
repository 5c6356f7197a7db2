"""Verdicts and remedies, without files: GPUs, drivers, and libraries made of plain values."""

from pathlib import Path

import pytest

from fdl.base.errors import UsageError
from fdl.base.hardware import Gpu, Nvidia
from fdl.libtorch import catalog
from fdl.libtorch.catalog import parse
from fdl.libtorch.prove.binary import Binary, Image
from fdl.libtorch.prove.facts import Cuda, Facts, cards_of, judge, remedy
from fdl.libtorch.prove.report import examine
from tests.rows import each_row

CUDA_128 = Cuda("12.8", "build-version")


def unit(*names, isa=(8, 7)):
    """A translation unit from names such as ``sm_80`` and ``compute_90``."""
    found = set()
    for name in names:
        kind, _, digits = name.partition("_")
        (one,) = parse(f"{digits.rstrip('af')[:-1]}.{digits[len(digits.rstrip('af')) - 1 :]}")
        form = "sass" if kind == "sm" else "ptx"
        found.add(Image(one, form, isa if form == "ptx" else (0, 0)))
    return frozenset(found)


def facts(*units, name="libtorch_cuda.so", torch="2.10.0+cu128", cuda=CUDA_128, isa=(8, 7)):
    code = {}
    for names, count in units:
        code[unit(*names.split(), isa=isa)] = count
    library = Binary(Path(name), "elf", "x86_64", code=code)
    return Facts(Path("libtorch"), (library,), torch, cuda)


def card(capability, name="Test"):
    major, minor = capability.split(".")
    return Gpu(0, name, (int(major), int(minor)))


@pytest.fixture(autouse=True)
def linux_with_archives(monkeypatch):
    monkeypatch.setattr(catalog, "this_platform", lambda: "linux-x86_64")


@each_row(
    ("code", "capability", "outcome", "used"),
    [
        ("sm_70 sm_75", "5.2", "impossible", ""),
        ("sm_80", "8.6", "native", "sm_80"),
        ("sm_86", "8.0", "impossible", ""),
        ("sm_80 sm_86", "8.9", "native", "sm_86"),
        ("sm_80 compute_80", "9.0", "jit", "compute_80"),
        ("sm_80 compute_90", "8.6", "native", "sm_80"),
        ("compute_90", "8.6", "impossible", ""),
        ("sm_90a", "9.0", "native", "sm_90a"),
        ("sm_90a compute_90a", "12.0", "impossible", ""),
        ("sm_100f", "10.3", "native", "sm_100f"),
    ],
)
def test_the_code_of_a_library_decides(code, capability, outcome, used):
    found = judge(card(capability), facts((code, 1)))
    assert (found.outcome, found.code) == (outcome, used)
    assert found.cause == ("code" if outcome == "impossible" else "")
    assert "libtorch_cuda.so" in found.reason


def test_a_few_kernels_for_a_card_do_not_make_the_library_run_on_it():
    found = judge(card("9.0"), facts(("sm_80", 100), ("sm_80 sm_90a", 4)))
    assert found.outcome == "impossible"
    assert "in only 4 of 104 translation units" in found.reason


def test_kernels_made_for_one_card_alone_do_not_spoil_the_others():
    mixed = facts(("sm_80 sm_90", 396), ("sm_80 sm_90 sm_90a", 4), ("sm_90a", 60))
    assert judge(card("8.0"), mixed).outcome == "native"
    assert "in 400 of 460 translation units" in judge(card("8.0"), mixed).reason
    assert judge(card("9.0"), mixed).code == "sm_90"
    assert mixed.architectures == parse("8.0 9.0")


def test_nvidias_libraries_beside_torchs_have_no_say():
    ours = facts(("sm_80", 10)).libraries[0]
    theirs = facts(("sm_90", 10), name="libcublas.so.12").libraries[0]
    both = Facts(Path("libtorch"), (ours, theirs), "2.10.0+cu128", CUDA_128)
    assert judge(card("8.0"), both).outcome == "native"
    assert judge(card("9.0"), both).outcome == "impossible"
    alone = Facts(Path("libtorch"), (theirs,))
    assert judge(card("9.0"), alone).outcome == "native"


def test_a_build_without_gpu_code_serves_no_card():
    cpu = Facts(Path("libtorch"), (Binary(Path("libtorch_cpu.so"), "elf", "x86_64"),), "2.10.0+cpu")
    found = judge(card("8.6"), cpu)
    assert (found.outcome, found.cause) == ("impossible", "code")
    assert "this is a build for the CPU" in found.reason
    assert remedy([found], cpu) == "fdl libtorch install cu128"


def test_a_driver_older_than_cuda_needs_makes_it_impossible():
    cu130 = facts(("sm_86", 10), torch="2.11.0+cu130", cuda=Cuda("13.0", "build-version"))
    old = Nvidia(driver="535.54.03", cuda="12.2")
    found = judge(card("8.6"), cu130, old)
    assert (found.outcome, found.cause) == ("impossible", "driver")
    assert found.reason == "CUDA 13.0 takes driver 580.65.06 or newer, installed is 535.54.03"
    assert judge(card("8.6"), cu130, Nvidia(driver="580.65.06", cuda="13.0")).outcome == "native"
    assert judge(card("8.6"), cu130).outcome == "native"


def test_ptx_takes_a_driver_that_knows_its_language_and_machine_code_does_not():
    both = facts(("sm_80 compute_80", 10))
    old = Nvidia(driver="550.54.14", cuda="12.4")
    assert judge(card("8.6"), both, old).outcome == "native"
    found = judge(card("12.0"), both, old)
    assert (found.outcome, found.cause) == ("impossible", "driver")
    assert found.reason == (
        "the PTX 8.7 in libtorch_cuda.so takes a driver for CUDA 12.8 or newer, "
        "and 550.54.14 is for 12.4"
    )
    assert judge(card("12.0"), both, Nvidia(driver="570.86.10", cuda="12.8")).outcome == "jit"


def test_ptx_says_what_it_asks_of_a_driver_that_is_not_known():
    found = judge(card("12.0"), facts(("compute_80", 1)))
    assert found.outcome == "jit"
    assert "takes a driver for CUDA 12.8 or newer" in found.reason
    assert "the first start is slow" in found.reason


@each_row(
    ("have", "cuda", "archs", "expected"),
    [
        ("sm_75 sm_80 sm_90", "12.8", "8.6", ""),
        ("sm_75 sm_80 sm_90 sm_100 sm_120", "12.8", "6.1", "fdl libtorch install cu126"),
        ("sm_50 sm_60 sm_70 sm_80 sm_90", "12.6", "12.0", "fdl libtorch install cu128"),
        (
            "sm_70 sm_75 sm_80 sm_90 sm_100 sm_120",
            "12.8",
            "6.1;12.0",
            'fdl libtorch build --archs "6.1;12.0"',
        ),
        # What the catalog promises is here already, and does not hold: only a build is left.
        (
            "sm_70 sm_75 sm_80 sm_90 sm_100 sm_120",
            "12.8",
            "3.5",
            'fdl libtorch build --archs "3.5"',
        ),
        # A poor build of the same CUDA: the official archive serves.
        ("sm_75", "12.8", "9.0", "fdl libtorch install cu128"),
    ],
)
def test_the_remedy_is_another_variant_or_else_a_build(have, cuda, archs, expected):
    holds = facts((have, 10), torch="2.10.0", cuda=Cuda(cuda, "build-version"))
    verdicts = [judge(one, holds) for one in cards_of(archs)]
    assert remedy(verdicts, holds) == expected


def test_the_remedy_keeps_the_torch_version():
    holds = facts(("sm_75", 10), torch="2.11.0+cu126", cuda=Cuda("12.6", "build-version"))
    verdicts = [judge(one, holds) for one in cards_of("12.0")]
    assert remedy(verdicts, holds) == "fdl libtorch install cu130 --torch 2.11.0"


def test_an_old_driver_is_to_be_updated_unless_an_older_cuda_serves():
    cu130 = facts(("sm_86", 10), torch="2.11.0+cu130", cuda=Cuda("13.0", "build-version"))
    old = Nvidia(driver="535.54.03", cuda="12.2")
    verdicts = [judge(card("8.6"), cu130, old)]
    assert remedy(verdicts, cu130, old) == "fdl libtorch install cu128 --torch 2.11.0"
    older = Nvidia(driver="470.00.00", cuda="11.4")
    verdicts = [judge(card("8.6"), cu130, older)]
    assert remedy(verdicts, cu130, older) == (
        "update the NVIDIA driver: CUDA 13.0 takes driver 580.65.06 or newer, "
        "installed is 470.00.00"
    )


def test_libraries_that_are_no_libtorch_are_to_be_compiled_again():
    mine = facts(("sm_80", 1), name="libmine.so", torch="", cuda=None)
    verdicts = [judge(one, mine) for one in cards_of("8.0;9.0")]
    assert remedy(verdicts, mine) == (
        "compile it for these GPUs: nvcc -gencode arch=compute_80,code=sm_80 "
        "-gencode arch=compute_90,code=sm_90"
    )


def test_libraries_for_another_machine_are_an_error(monkeypatch):
    monkeypatch.setattr("fdl.libtorch.prove.report.processor", lambda: "arm64")
    monkeypatch.setattr("fdl.libtorch.prove.report.operating_system", lambda: "linux")
    report = examine(facts(("sm_90", 1)), [card("9.0")], None, {})
    assert report.verdicts[0].outcome == "native"
    assert not report.ok
    assert report.links is None
    assert [one.message for one in report.problems] == [
        "the libraries are for Linux x86_64, this machine is Linux arm64"
    ]


def test_papers_of_another_cuda_than_the_libraries_are_an_error():
    linked = Binary(Path("libc10_cuda.so"), "elf", "x86_64", needed=("libcudart.so.12",))
    wrong = Facts(Path("libtorch"), (linked,), "2.11.0+cu130", Cuda("13.0", "build-version"))
    assert (wrong.cuda.version, wrong.cuda.origin) == (
        "12",
        "libcudart.so.12, needed by libc10_cuda.so",
    )
    report = examine(wrong, [], None, {})
    assert any("build-version says CUDA 13.0" in one.message for one in report.problems)
    assert not report.ok


def test_the_runtime_with_a_digest_in_its_name_is_known_too():
    linked = Binary(Path("libc10_cuda.so"), "elf", needed=("libcudart-218eec4c.so.12",))
    assert Facts(Path("libtorch"), (linked,)).cuda.version == "12"


def test_cards_are_written_like_architectures():
    assert [one.sm for one in cards_of("12.0, 6.1+PTX 6.1")] == ["sm_61", "sm_120"]
    with pytest.raises(UsageError, match="`nonsense` is not a GPU architecture"):
        cards_of("nonsense")
