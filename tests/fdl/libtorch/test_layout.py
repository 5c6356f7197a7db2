"""Which members make a libtorch, and what it says about itself."""

import pytest

from fdl.base.errors import LibtorchError
from fdl.libtorch.layout import (
    Contents,
    cuda_variant,
    cuda_version,
    identify,
    nvidia_only,
    place,
    place_nvidia,
    version_facts,
)
from tests.rows import each_row


@each_row(
    ("member", "where"),
    [
        ("libtorch/lib/libtorch.so", "lib/libtorch.so"),
        ("libtorch/build-version", "build-version"),
        ("libtorch/include/torch/torch.h", "include/torch/torch.h"),
        ("libtorch/bin/torch_shm_manager", "bin/torch_shm_manager"),
        ("libtorch/bin/test_api", None),
        ("libtorch/", None),
        ("lib/libtorch.so", "lib/libtorch.so"),
        ("share/cmake/Torch/TorchConfig.cmake", "share/cmake/Torch/TorchConfig.cmake"),
        ("torch/lib/libtorch_cpu.so", "lib/libtorch_cpu.so"),
        ("torch/share/cmake/Torch/TorchConfig.cmake", "share/cmake/Torch/TorchConfig.cmake"),
        ("torch/bin/protoc-3.13.0.0", "bin/protoc-3.13.0.0"),
        ("torch/bin/FileStoreTest", None),
        ("torch/.dylibs/libomp.dylib", ".dylibs/libomp.dylib"),
        ("torch/nn/functional.py", None),
        ("torch/version.py", ".version.py"),
        ("torch.libs/libopenblas.so.0", "lib/libopenblas.so.0"),
        ("torch-2.13.0.dist-info/METADATA", ".metadata"),
        ("torch-2.13.0.dist-info/RECORD", None),
        ("functorch/_C.so", None),
        ("torchgen/model.py", None),
    ],
)
def test_where_a_member_belongs(member, where):
    assert place(member) == where


@each_row(
    ("member", "where"),
    [
        ("nvidia/cublas/lib/libcublas.so.12", "lib/libcublas.so.12"),
        ("nvidia/cu13/lib/libcudart.so.13", "lib/libcudart.so.13"),
        ("nvidia/cuda_runtime/lib/stubs/libcuda.so", None),
        ("nvidia/cuda_runtime/include/cuda.h", None),
        ("nvidia/cublas/lib/__init__.py", None),
        ("nvidia_cublas-12.8.dist-info/METADATA", None),
        ("elsewhere/lib/libevil.so", None),
    ],
)
def test_of_nvidias_packages_only_the_libraries_come_along(member, where):
    assert place_nvidia(member) == where


def test_a_variant_is_named_after_its_cuda_version():
    assert [cuda_variant(one) for one in ("12.6", "12.8", "13.0")] == ["cu126", "cu128", "cu130"]
    assert [cuda_version(one) for one in ("cu126", "cu92", "cu130")] == ["12.6", "9.2", "13.0"]
    assert [cuda_version(one) for one in ("cpu", "cu", "rocm6.4", "cu1280")] == [None] * 4


@each_row(
    ("version", "cuda", "has_cuda", "wanted", "expected"),
    [
        ("2.10.0+cpu", None, False, None, Contents("2.10.0", "cpu", None, "cpu")),
        ("2.10.0+cu128", None, True, None, Contents("2.10.0", "cu128", "12.8")),
        ("2.13.0", "13.0", True, None, Contents("2.13.0", "cu130", "13.0")),
        ("2.13.0", None, False, None, Contents("2.13.0", "cpu", None, "cpu")),
        ("2.13.0", None, True, "cu126", Contents("2.13.0", "cu126", "12.6")),
        ("2.13.0a0+gitcf30153", "12.8", True, None, Contents("2.13.0a0", "cu128", "12.8")),
        ("2.10.0+rocm6.4", None, False, None, Contents("2.10.0", "rocm6.4")),
    ],
)
def test_what_a_libtorch_is(version, cuda, has_cuda, wanted, expected):
    found = identify(version, cuda=cuda, has_cuda=has_cuda, wanted=wanted, where="x.zip")
    assert found == expected


def test_cuda_of_no_stated_version_has_to_be_named_by_the_user():
    with pytest.raises(LibtorchError, match=r"x\.zip .* of which version") as caught:
        identify("2.13.0", cuda=None, has_cuda=True, wanted=None, where="x.zip")
    assert "fdl libtorch install cu128 --source" in caught.value.hint


def test_a_variant_that_would_leave_its_folder_is_refused():
    with pytest.raises(LibtorchError, match="cannot be a folder"):
        identify("2.13.0+xpu/../..", cuda=None, has_cuda=False, wanted=None, where="x.zip")


def test_version_py_is_read_and_never_run():
    facts = version_facts(
        "from typing import Optional\nimport sys\nsys.exit(1)\n"
        "__version__ = '2.13.0+cpu'\ndebug = False\ncuda: Optional[str] = None\n"
    )
    assert facts == {"__version__": "2.13.0+cpu", "debug": False, "cuda": None}
    assert version_facts("this is no python (") == {}


def test_what_a_variant_records_about_itself():
    assert Contents("2.10.0", "cpu", None, "cpu").facts == {
        "cuda": "none",
        "torch": "2.10.0",
        "archs": "cpu",
        "source": "precompiled",
        "variant": "cpu",
    }
    unknown = Contents("2.10.0", "rocm6.4")
    assert unknown.facts == {"torch": "2.10.0", "source": "precompiled", "variant": "rocm6.4"}


def test_the_requirements_that_bring_libraries_of_cuda():
    assert nvidia_only(
        ["filelock", "cuda-bindings<14", "cuda-toolkit[cublas]==13.0.3", "nvidia-cudnn-cu13==9.2"]
    ) == ["cuda-toolkit[cublas]==13.0.3", "nvidia-cudnn-cu13==9.2"]
