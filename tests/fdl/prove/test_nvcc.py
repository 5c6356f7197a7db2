"""The reader against nvcc: what was asked for is what is read."""

import shutil
import subprocess

import pytest

from fdl.libtorch.prove import facts_of
from fdl.libtorch.prove.facts import cards_of, cuda_of, images, judge
from tests.fdl.prove.cuda import KERNEL, library, needs_nvcc, nvcc, nvcc_release, targets

pytestmark = [needs_nvcc, pytest.mark.slow]


def sweep(*values):
    """One more of many alike: nvcc takes seconds for each."""
    return pytest.param(*values, marks=pytest.mark.slow)


def code_of(folder):
    facts = facts_of(folder)
    assert [one.problem for one in facts.libraries] == [""] * len(facts.libraries)
    return sorted(image.name for image in facts.images)


def outcomes(folder, archs):
    facts = facts_of(folder)
    return {card.sm: judge(card, facts).outcome for card in cards_of(archs)}


@pytest.mark.parametrize(
    ("codes", "archs"),
    [
        sweep(["sm_80"], "8.0"),
        sweep(["compute_80"], "8.0+PTX"),
        sweep(["sm_75", "sm_86", "sm_90", "compute_90"], "7.5 8.6 9.0+PTX"),
        sweep(["sm_90a"], "9.0a"),
        sweep(["sm_90", "sm_90a", "compute_90"], "9.0+PTX 9.0a"),
        (["sm_103a", "sm_120f", "sm_121"], "10.3a 12.0f 12.1"),
        sweep(["compute_90a", "compute_100f"], "9.0a+PTX 10.0f+PTX"),
    ],
)
def test_every_architecture_asked_for_is_read_and_no_other(tmp_path, codes, archs):
    folder = library(tmp_path, *targets(*codes))
    assert code_of(folder) == sorted(codes)
    assert " ".join(map(str, facts_of(folder).architectures)) == archs


COMPRESSED = targets("sm_75", "sm_90a", "compute_90")


@pytest.mark.parametrize("mode", [sweep("none"), sweep("speed"), sweep("balance"), "size"])
def test_compressed_fat_binaries_are_read_like_plain_ones(tmp_path, mode):
    folder = library(tmp_path, *COMPRESSED, f"--compress-mode={mode}")
    assert code_of(folder) == ["compute_90", "sm_75", "sm_90a"]


@pytest.mark.slow
def test_the_modes_of_compression_differ_in_size_so_the_test_above_means_something(tmp_path):
    sizes = [
        (library(tmp_path / mode, *COMPRESSED, f"--compress-mode={mode}") / "lib" / "libkernels.so")
        .stat()
        .st_size
        for mode in ("none", "size")
    ]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    "codes",
    [["sm_80", "compute_80"], sweep(["sm_80", "sm_90"]), sweep(["compute_80"])],
    ids=" ".join,
)
def test_relocatable_device_code_is_read(tmp_path, codes):
    folder = library(tmp_path, "-rdc=true", *targets(*codes), cudart="static")
    assert code_of(folder) == sorted(codes)


@pytest.mark.slow
def test_a_static_library_linked_on_the_device_is_read(tmp_path):
    source, extra = tmp_path / "part.cu", tmp_path / "whole.cu"
    source.write_text("__device__ float twice(float value) { return 2.0f * value; }\n")
    extra.write_text(f"extern __device__ float twice(float);\n{KERNEL}".replace("+= more", "*= 3"))
    flags = targets("sm_80", "sm_86")
    common = ("-rdc=true", "-Xcompiler", "-fPIC", *flags)
    nvcc("-c", *common, source, "-o", tmp_path / "part.o")
    nvcc("-lib", tmp_path / "part.o", "-o", tmp_path / "libpart.a")
    nvcc("-c", *common, extra, "-o", tmp_path / "whole.o")
    (tmp_path / "lib").mkdir()
    linked = ("-shared", "-cudart", "shared", *common, tmp_path / "whole.o", tmp_path / "libpart.a")
    nvcc(*linked, "-o", tmp_path / "lib" / "libwhole.so")
    assert code_of(tmp_path) == ["sm_80", "sm_86"]


@pytest.mark.slow
def test_of_two_libraries_the_one_that_lacks_code_decides(tmp_path):
    library(tmp_path, *targets("sm_80"))
    library(tmp_path, *targets("sm_86"), name="libnarrow.so")
    assert code_of(tmp_path) == ["sm_80", "sm_86"]
    assert outcomes(tmp_path, "8.0;8.6;8.9;9.0") == {
        "sm_80": "impossible",
        "sm_86": "native",
        "sm_89": "native",
        "sm_90": "impossible",
    }
    facts = facts_of(tmp_path)
    (card,) = cards_of("8.0")
    assert judge(card, facts).library == "libnarrow.so"
    assert [str(one) for one in facts.architectures] == ["8.6"]


def test_verdicts_follow_the_rules_of_binary_and_of_ptx_compatibility(tmp_path):
    folder = library(tmp_path, *targets("sm_80", "sm_90a", "compute_90"))
    assert outcomes(folder, "7.5;8.0;8.6;8.9;9.0;10.0;12.0") == {
        "sm_75": "impossible",
        "sm_80": "native",
        "sm_86": "native",
        "sm_89": "native",
        "sm_90": "native",
        "sm_100": "jit",
        "sm_120": "jit",
    }


def test_architecture_specific_code_runs_there_and_nowhere_else(tmp_path):
    folder = library(tmp_path, *targets("sm_90a", "sm_100f", "compute_120f"))
    assert outcomes(folder, "9.0;10.0;10.3;12.0;12.1") == {
        "sm_90": "native",
        "sm_100": "native",
        "sm_103": "native",
        "sm_120": "jit",
        "sm_121": "jit",
    }
    only = library(tmp_path / "only", *targets("sm_100a", "compute_90a"))
    assert outcomes(only, "9.0;10.0;10.3;12.0") == {
        "sm_90": "jit",
        "sm_100": "native",
        "sm_103": "impossible",
        "sm_120": "impossible",
    }


def test_a_library_without_kernels_has_no_gpu_code(tmp_path):
    (tmp_path / "lib").mkdir()
    source = tmp_path / "host.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    flags = ("-shared", "-Xcompiler", "-fPIC")
    nvcc(*flags, "-cudart", "none", source, "-o", tmp_path / "lib" / "libhost.so")
    facts = facts_of(tmp_path)
    assert (facts.images, facts.architectures, facts.carriers) == ((), (), ())


def test_code_for_link_time_optimization_is_no_code_to_run(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text(KERNEL)
    flags = ("-dc", "-Xcompiler", "-fPIC", "-gencode", "arch=compute_90,code=lto_90")
    nvcc(*flags, source, "-o", tmp_path / "kernel.o")
    (tmp_path / "lib").mkdir()
    compiler = shutil.which("g++")
    target = tmp_path / "lib" / "libkernel.so"
    subprocess.run([compiler, "-shared", "-o", target, tmp_path / "kernel.o"], check=True)
    facts = facts_of(tmp_path)
    assert [one.unjudged for one in facts.libraries] == [1]
    assert facts.images == ()


def test_the_cuda_version_is_read_from_the_linked_runtime_made_exact_by_the_compilers_mark(
    tmp_path,
):
    facts = facts_of(library(tmp_path, *targets("sm_80")))
    assert facts.cuda.version == nvcc_release()
    assert any(name.startswith("libcudart.so.") for name in facts.libraries[0].needed)


@pytest.mark.parametrize("code", ["sm_80", "compute_80"])
def test_the_cuda_version_is_read_without_a_linked_runtime(tmp_path, code):
    facts = facts_of(library(tmp_path, *targets(code), cudart="static"))
    assert not any("cudart" in name for name in facts.libraries[0].needed)
    assert facts.cuda.version == nvcc_release()
    assert facts.driver is not None


def test_the_language_version_of_ptx_is_the_compilers(tmp_path):
    (found,) = images(facts_of(library(tmp_path, *targets("compute_80"))).libraries[0])
    assert cuda_of(found.isa) == nvcc_release()
