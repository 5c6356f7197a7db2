"""What NVIDIA's own library and program say of a real GPU."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fdl.base.errors import BuildError
from fdl.base.hardware import gpus
from fdl.libtorch.build.plan import find_tools, nvcc_version
from fdl.libtorch.catalog import parse

ROOT = Path("/")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs a CUDA device"),
]


def test_the_library_and_the_program_give_the_same_facts() -> None:
    library, program = gpus.read_nvml(ROOT), gpus.read_smi(os.environ, ROOT)
    assert library.gpus
    assert (library.source, program.source) == ("nvml", "nvidia-smi")
    assert dataclasses.replace(library, source="") == dataclasses.replace(program, source="")


def test_the_facts_are_those_that_nvidia_smi_prints() -> None:
    asked = ["nvidia-smi", "--query-gpu=uuid,memory.total,name", "--format=csv,noheader,nounits"]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    found = [
        f"{one.uuid}, {round(one.memory / 2**20)}, {one.name}" for one in gpus.read_nvml(ROOT).gpus
    ]
    assert found == printed.splitlines()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the compiler of CUDA")
def test_the_compiler_of_cuda_says_its_release_and_what_it_compiles_for() -> None:
    found = find_tools(os.environ)
    printed = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True)
    assert f"release {nvcc_version(found, parse('8.0'))}" in printed.stdout
    with pytest.raises(BuildError, match=r"cannot compile for 1\.0"):
        nvcc_version(found, parse("1.0"))
