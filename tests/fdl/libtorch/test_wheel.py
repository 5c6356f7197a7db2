"""``--source wheel``: the real pip, and packages that a test has made."""

import sys

import pytest

from tests.fdl.libtorch.archives import torch_wheel, wheel

CUDA_NEEDS = [
    "filelock",
    'nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"',
    'nvidia-cudnn-cu12==9.10; platform_system == "Linux"',
    'nvidia-elsewhere==1.0; platform_machine == "pdp11"',
]


@pytest.fixture
def links(tmp_path):
    """A folder that pip takes packages from, and the only one."""
    return tmp_path / "wheels"


@pytest.fixture
def install(libtorch, links):
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_CONFIG_FILE": "/dev/null"}

    def run(*args):
        return libtorch("install", *args, "--source", "wheel", env=env, timeout=120)

    return run


def nvidia(links):
    wheel(
        links,
        "nvidia-cuda-runtime-cu12",
        "12.8.90",
        {
            "nvidia/cuda_runtime/lib/libcudart.so.12": b"the runtime",
            "nvidia/cuda_runtime/include/cuda.h": b"a header",
        },
    )
    wheel(
        links,
        "nvidia-cudnn-cu12",
        "9.10",
        {"nvidia/cudnn/lib/libcudnn.so.9": b"networks"},
        requires=["nvidia-cublas-cu12"],
    )
    wheel(links, "nvidia-cublas-cu12", "12.8", {"nvidia/cublas/lib/libcublas.so.12": b"matrices"})


def test_the_cpu_build_comes_from_the_users_own_index(install, links, store, home):
    torch_wheel(links, "2.13.0+cpu", requires=["filelock", "sympy"])
    torch_wheel(links, "2.13.0+cu130", cuda="13.0")
    done = install("cpu", "--torch", "2.13.0")
    assert done.exit == 0, done.err
    folder = store / "precompiled" / "cpu"
    assert (folder / "build-version").read_text() == "2.13.0+cpu\n"
    assert f"export LIBTORCH={folder}\n" in done.out
    assert "torch-2.13.0+cpu-py3-none-any.whl" in (home / "libtorch.lock").read_text()
    assert not list((store / ".cache" / "downloads").iterdir())
    assert "already installed" in install("cpu", "--torch", "2.13.0").err


@pytest.mark.skipif(sys.platform != "linux", reason="only there CUDA comes in packages of its own")
def test_the_libraries_of_cuda_are_brought_along(install, links, store):
    torch_wheel(links, "2.9.0", cuda="12.8", requires=CUDA_NEEDS)
    nvidia(links)
    done = install("cu128", "--torch", "2.9.0")
    assert done.exit == 0, done.err
    folder = store / "precompiled" / "cu128"
    names = {one.name for one in (folder / "lib").iterdir()}
    assert {"libtorch_cuda.so", "libcudart.so.12", "libcudnn.so.9", "libcublas.so.12"} <= names
    assert (folder / "lib" / "libcublas.so.12").read_bytes() == b"matrices"
    assert not (folder / "include" / "cuda.h").exists()
    assert "cuda=12.8\n" in (folder / ".arch").read_text()
    assert (folder / "build-version").read_text() == "2.9.0\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only there CUDA comes in packages of its own")
@pytest.mark.slow
def test_a_missing_package_of_nvidia_leaves_the_store_as_it_was(install, links, store):
    torch_wheel(links, "2.9.0", cuda="12.8", requires=CUDA_NEEDS)
    done = install("cu128", "--torch", "2.9.0")
    assert done.exit == 1
    assert "pip could not download nvidia-cuda-runtime-cu12" in done.err
    assert not (store / "precompiled").exists()

    nvidia(links)
    again = install("cu128", "--torch", "2.9.0")
    assert again.exit == 0, again.err
    assert "torch-2.9.0" in again.err
    assert "already downloaded" in again.err


@pytest.mark.skipif(sys.platform != "linux", reason="only there CUDA comes in packages of its own")
def test_whoever_asks_for_the_cpu_build_gets_no_gigabytes_of_cuda(install, links, store):
    torch_wheel(links, "2.9.0", cuda="12.8", requires=CUDA_NEEDS)
    done = install("cpu", "--torch", "2.9.0")
    assert done.exit == 1
    assert "pip offers torch 2.9.0 as cu128 only, and not as cpu" in done.err
    line = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu fdl libtorch install cpu"
    assert f"hint: {line} --source wheel --torch 2.9.0\n" in done.err
    assert not list((store / ".cache").rglob("*.whl"))


def test_a_version_that_pip_does_not_have(install, links):
    torch_wheel(links, "2.13.0+cpu")
    done = install("cpu", "--torch", "2.12.0")
    assert done.exit == 1
    assert "pip has no torch 2.12.0" in done.err
    assert "index versions torch` lists what there is" in done.err
    assert "the newest one: fdl libtorch install cpu --source wheel" in done.err


@pytest.mark.slow
def test_without_a_version_it_is_the_newest_one_of_the_variant(install, links, store):
    for version in ("2.12.0+cpu", "2.14.1+cpu"):
        torch_wheel(links, version)
    torch_wheel(links, "2.15.0+cu130", cuda="13.0")
    done = install("cpu")
    assert done.exit == 0, done.err
    assert (store / "precompiled/cpu/build-version").read_text() == "2.14.1+cpu\n"
    assert "already installed" in install("cpu").err


@pytest.mark.slow
def test_an_index_without_torch_is_answered_with_a_line_that_names_one(install, links):
    links.mkdir()
    done = install("cu128")
    assert done.exit == 1
    line = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu128 fdl libtorch install cu128"
    assert f"{line} --source wheel\n" in done.err


def test_a_dry_run_does_not_ask_pip(libtorch):
    shown = libtorch("install", "cpu", "--source", "wheel", "-n", env={"PIP_NO_INDEX": "1"})
    assert shown.exit == 0
    assert "Source:  python -m pip download torch\n" in shown.out


def test_the_pip_of_another_python_serves_one_without(monkeypatch, tmp_path):
    from fdl.base.errors import LibtorchError
    from fdl.libtorch import pip

    monkeypatch.setattr(pip, "find_spec", lambda _name: None)
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    assert pip.command({"PATH": str(tmp_path)}) == [str(program), "-m", "pip"]
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(LibtorchError, match="needs pip"):
        pip.command({"PATH": str(tmp_path)})


@pytest.mark.parametrize("more", [[], ["--source", "wheel"]])
def test_a_wheel_on_disk_needs_neither_pip_nor_a_network(libtorch, links, store, more):
    torch_wheel(links, "2.12.0+cpu")
    newest = torch_wheel(links, "2.14.1+cpu")
    torch_wheel(links, "2.15.0+cu130", cuda="13.0")
    (links / "torch-9.whl").write_bytes(b"not a wheel")
    env = {"PIP_NO_INDEX": "1", "https_proxy": "http://127.0.0.1:9"}
    done = libtorch("install", "cpu", "--from", str(links), *more, env=env)
    assert done.exit == 0, done.err
    assert (store / "precompiled/cpu/build-version").read_text() == "2.14.1+cpu\n"
    done = libtorch("install", "--from", str(newest), *more, env=env)
    assert "already installed" in done.err
    done = libtorch("install", "cpu", "--torch", "2.12.0", "--from", str(links), *more, env=env)
    assert (store / "precompiled/cpu/build-version").read_text() == "2.12.0+cpu\n"


def test_what_is_not_on_disk_is_said_with_the_line_that_brings_it(libtorch, links, tmp_path):
    torch_wheel(links, "2.15.0+cu130", cuda="13.0")
    done = libtorch("install", "cpu", "--from", str(links))
    assert done.exit == 2
    assert f"--from {links}: there is no wheel or archive of torch cpu in this folder" in done.err
    assert f"python -m pip download torch --no-deps --dest {links}" in done.err
    assert "there is no such file" in libtorch("install", "--from", str(tmp_path / "gone")).err
    text = tmp_path / "libtorch.zip"
    text.write_bytes(b"")
    done = libtorch("install", "--from", str(text), "--source", "wheel")
    assert "is not a wheel" in done.err


@pytest.mark.slow
def test_an_archive_that_cannot_be_reached_names_wheel_mode(libtorch):
    env = {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    done = libtorch("install", "cpu", env=env, timeout=120)
    assert done.exit == 1
    assert "or through pip: fdl libtorch install cpu --source wheel\n" in done.err
