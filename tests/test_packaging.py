"""The wheel, built from the tree and installed where there is no torch."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import fdl
from tests.surroundings import of_machine

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel once, the way an index would get it: sdist first, then the wheel of it."""
    dist = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (made,) = dist.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """A fresh virtual environment with the wheel and its own dependencies, nothing else."""
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    env = {**os.environ, **of_machine()}
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], env=env, check=True)
    return home / "bin"


def run(bare, *words, cwd):
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env["PATH"] = f"{bare}{os.pathsep}{env['PATH']}"
    return subprocess.run(
        [str(bare / words[0]), *words[1:]], cwd=cwd, env=env, capture_output=True, text=True
    )


def test_the_wheel_carries_templates_types_and_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "fdl/scaffold/templates/project/train/main.py" in names
    assert "fdl/scaffold/templates/project/dot-gitignore.j2" in names
    assert "fdl/scaffold/templates/containers/{{ cpu_dockerfile }}.j2" in names
    assert "fdl/scaffold/templates/parts/image.j2" in names
    assert "flodl/data/uci_digits/images.idx3-ubyte.gz" in names
    assert "flodl/data/uci_digits/ATTRIBUTION.md" in names
    assert {"fdl/py.typed", "flodl/py.typed"} <= set(names)
    # Public names are loaded from these at run time.
    assert {"flodl/__init__.pyi", "flodl/hf/__init__.pyi"} <= set(names)
    assert "fdl/libtorch/catalog.toml" in names
    page = {"page.html", "page.css", "main.js", "chart.js", "uplot.js"}
    assert {f"fdl/base/page/{name}" for name in page} <= set(names)
    assert "fdl/libtorch/build/container/Dockerfile" in names
    assert {
        f"fdl/scaffold/skill/data/port/{name}.md" for name in ("SKILL", "guide", "instructions")
    } <= set(names)
    shells = ("bash", "zsh", "fish")
    assert {f"fdl/machine/completion_scripts/fdl.{shell}" for shell in shells} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"fdl", "flodl"}
    (license_file,) = [name for name in names if name.endswith("/LICENSE")]
    assert "MIT License" in zipfile.ZipFile(wheel).read(license_file).decode()


def test_the_metadata_of_the_wheel_is_what_an_index_shows(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    told = HeaderParser().parsestr(archive.read(name).decode())
    assert told["License-Expression"] == "MIT AND CC-BY-4.0"
    assert told["Description-Content-Type"] == "text/markdown"
    assert not re.search(r"\]\((?!https://)", told.get_payload())
    assert sorted(told.get_all("License-File")) == [
        "LICENSE",
        "flodl/data/uci_digits/ATTRIBUTION.md",
    ]


# Two builds, four Pythons, two type checkers: some minutes, and much from the package index.
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_packages_are_reproducible_installable_and_typed(tmp_path):
    script = ROOT / "scripts/packages.sh"
    env = {**os.environ, **of_machine()}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        ["bash", script, tmp_path / "dist"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": works\n") >= 1
    assert done.stdout.endswith("mypy and pyright report the three mistakes, and no others\n")
    assert {file.suffix for file in (tmp_path / "dist").iterdir()} == {".whl", ".gz"}


def test_the_source_archive_can_run_the_tests(wheel):
    (archive,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    assert {"constraints.txt", "tests/conftest.py", "templates/project/fdl"} <= names


@pytest.mark.slow
def test_without_torch_fdl_does_everything_that_needs_no_torch(bare, tmp_path):
    assert run(bare, "python", "-c", "import torch", cwd=tmp_path).returncode == 1
    assert run(bare, "fdl", "--version", cwd=tmp_path).stdout == f"flodl-cli {fdl.__version__}\n"
    page = run(bare, "fdl", "--help", cwd=tmp_path)
    assert page.returncode == 0
    assert "init" in page.stdout
    made = run(bare, "fdl", "init", "demo", "--native", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "\n  pip install 'flodl[train]'  # install PyTorch\n" in made.stdout
    assert (tmp_path / "demo/train/main.py").is_file()
    (tmp_path / "fdl.yml").write_text("commands:\n  hello:\n    run: echo hello from $0\n")
    said = run(bare, "fdl", "hello", cwd=tmp_path)
    assert (said.returncode, said.stdout) == (0, "hello from sh\n")


@pytest.mark.slow
def test_without_torch_flodl_names_the_extra_in_one_line(bare, tmp_path):
    done = run(bare, "python", "-c", "import flodl", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "error: flodl needs PyTorch, which is not installed; type: pip install 'flodl[train]'\n",
    )
    assert run(bare, "fdl", "init", "demo", "--native", cwd=tmp_path).returncode == 0
    trained = run(bare, "fdl", "train", cwd=tmp_path / "demo")
    assert trained.returncode == 1
    assert trained.stderr == done.stderr
