"""``--locked``: what libtorch.lock names, and nothing else; digests have an age."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from tests.conftest import typed_in
from tests.fdl.libtorch.archives import torch_wheel
from tests.test_guides import files_of


@pytest.fixture
def wheels(tmp_path, libtorch):
    """``wheels("cpu")`` installs a variant through pip from a folder with two versions of it."""
    links = tmp_path / "wheels"
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_CONFIG_FILE": "/dev/null"}
    torch_wheel(links, "2.12.0+cpu")
    torch_wheel(links, "2.14.1+cpu")
    torch_wheel(links, "2.14.1+cu130", cuda="13.0")
    return lambda *words: libtorch("install", *words, env=env, timeout=120)


@pytest.fixture(scope="module")
def home_with_cpu(tmp_path_factory):
    """The folder of a user who has installed the newer version."""
    folder = tmp_path_factory.mktemp("installed")
    torch_wheel(folder / "wheels", "2.14.1+cpu")
    env = {
        "FLODL_HOME": str(folder / "home"), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(folder / "wheels"),
    }  # fmt: skip
    done = typed_in(folder)("libtorch", "install", "cpu", "--source", "wheel", env=env, timeout=120)
    assert done.exit == 0, done.err
    return folder / "home"


@pytest.fixture
def installed(home_with_cpu, home):
    """The same for a test of its own."""
    return shutil.copytree(home_with_cpu, home)


def test_the_locked_version_is_installed_and_no_other(wheels, home, store):
    lock = home / "libtorch.lock"
    assert wheels("cpu", "--torch", "2.12.0", "--source", "wheel").exit == 0
    (entry,) = json.loads(lock.read_text())["files"].values()
    today = datetime.now(UTC).date()
    assert entry["recorded"] == today.isoformat()
    assert wheels("cpu", "--source", "wheel").exit == 0
    assert (store / "precompiled/cpu/build-version").read_text() == "2.14.1+cpu\n"

    document = json.loads(lock.read_text())
    (old,) = (name for name in document["files"] if "2.12.0" in name)
    document["files"] = {old: {**document["files"][old],
                               "recorded": str(today - timedelta(days=12))}}  # fmt: skip
    lock.write_text(json.dumps(document))
    done = wheels("--locked")
    assert done.exit == 0, done.err
    assert (store / "precompiled/cpu/build-version").read_text() == "2.12.0+cpu\n"
    assert f"{old} is the file that was recorded 12 days ago" in done.err
    assert json.loads(lock.read_text()) == document


@pytest.mark.slow
def test_a_wheel_whose_name_has_no_variant_is_locked_too(tmp_path, libtorch, home, store):
    """As on Linux aarch64 and macOS, and as the CUDA build of PyPI."""
    links = tmp_path / "plain"
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_CONFIG_FILE": "/dev/null"}
    torch_wheel(links, "2.14.1")

    def install(*words):
        return libtorch("install", *words, env=env, timeout=120)

    assert install("cpu", "--source", "wheel").exit == 0
    torch_wheel(links, "2.15.0")
    document = (home / "libtorch.lock").read_text()
    for variant in (["cpu"], []):
        (store / "precompiled/cpu/build-version").write_text("2.0.0+cpu\n")
        done = install("--locked", *variant)
        assert done.exit == 0, done.err
        assert (store / "precompiled/cpu/build-version").read_text().startswith("2.14.1")
        assert (home / "libtorch.lock").read_text() == document


def test_without_a_lock_nothing_is_named(wheels):
    done = wheels("--locked")
    assert (done.exit, "libtorch.lock has no libtorch for this platform" in done.err) == (2, True)


@pytest.mark.usefixtures("installed")
@pytest.mark.slow
def test_what_the_lock_does_not_name_is_refused(wheels):
    done = wheels("cu130", "--locked")
    assert (done.exit, "has no libtorch for cu130" in done.err) == (2, True)
    assert wheels("cpu", "--torch", "2.12.0", "--source", "wheel").exit == 0
    done = wheels("--locked")
    assert (done.exit, "libtorch.lock has several for this platform" in done.err) == (2, True)
    assert "fdl libtorch install --locked cpu --torch 2.12.0 --source wheel" in done.err


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_other_bytes_than_the_locked_ones_are_refused(wheels, home, store):
    lock = home / "libtorch.lock"
    document = json.loads(lock.read_text())
    for entry in document["files"].values():
        entry["sha256"] = "0" * 64
    lock.write_text(json.dumps(document))
    (store / "precompiled/cpu/build-version").write_text("2.0.0+cpu\n")
    done = wheels("--locked")
    assert done.exit == 1
    assert "is not what it was before" in done.err


@pytest.mark.usefixtures("installed")
@pytest.mark.slow
def test_an_installed_variant_of_other_bytes_is_not_taken_for_the_locked_one(wheels, home):
    assert "already installed" in wheels("--locked").err
    lock = home / "libtorch.lock"
    lock.write_text(re.sub(r'"sha256": "\w+"', f'"sha256": "{"0" * 64}"', lock.read_text()))
    done = wheels("--locked")
    assert (done.exit, "is not what it was before" in done.err) == (1, True)


def test_a_digest_of_another_algorithm_is_refused_with_its_line(libtorch, home):
    lock = home / "libtorch.lock"
    home.mkdir()
    entry = {"blake3": "0" * 64, "recorded": "2026-11-01"}
    document = {"version": 1, "files": {"a.whl": {"sha256": "1" * 64}, "torch.whl": entry}}
    lock.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    for words in (["install", "cpu"], ["install", "--locked"]):
        done = libtorch(*words)
        assert done.exit == 1
        assert f"{lock}:7: torch.whl has `blake3`, and fdl compares only `sha256`" in done.err
        assert "delete this entry, and record its SHA-256 again: fdl libtorch install" in done.err
    assert json.loads(lock.read_text()) == document


def test_files_on_disk_are_not_locked(wheels, tmp_path):
    wheel = next((tmp_path / "wheels").glob("torch-2.14.1+cpu*"))
    for words in (["--from", str(wheel)], ["--source", str(wheel)],
                  ["--from", str(wheel.parent)], ["--from", str(wheel), "--source", "wheel"],
                  ["--from", str(wheel), "--source", "archive"]):  # fmt: skip
        done = wheels("--locked", *words)
        assert (done.exit, "a file on disk is not in it" in done.err) == (2, True), done.err


@pytest.fixture
def repository(tmp_path, installed):
    """A folder of C++ sources with the lock of the user's own store, and no manifest."""
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    shutil.move(installed / "libtorch.lock", folder)
    shutil.rmtree(installed)
    return folder


@pytest.mark.usefixtures("wheels")
@pytest.mark.slow
def test_a_folder_with_a_lock_is_a_project(libtorch, tmp_path, repository, home):
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    done = libtorch("install", "--locked", cwd=repository / "src", env=env, timeout=120)
    assert done.exit == 0, done.err
    assert (repository / "libtorch/precompiled/cpu/lib/libtorch.so").is_file()
    assert not home.exists()


def steps_of_the_guide():
    """The lines with fdl that the workflow and the image of the guide run, in their order."""
    files = files_of("cpp-and-rust.md")
    workflow = yaml.safe_load(files["workflow.yml"])["jobs"]["build"]
    yield "workflow", [step["run"] for step in workflow["steps"] if "fdl " in str(step.get("run"))]
    lines = files["Dockerfile"].replace("\\\n", " ").splitlines()
    runs = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN fdl ")]
    yield "image", [line.partition(" cmake ")[0] + " true" if " exec " in line else line
                    for line in runs]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize(("name", "lines"), [*steps_of_the_guide()])
def test_the_lines_of_the_guide_install_what_the_lock_names(
    name, lines, tmp_path, repository, home
):
    assert len(lines) == 2
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    links = str(tmp_path / "wheels")
    for round in ("empty", "from the cache"):
        env = {
            **os.environ, "PATH": path, "CI": "1", "HOME": str(home), "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": links,
        }  # fmt: skip
        for line in lines:
            done = subprocess.run(
                ["bash", "-ec", line], cwd=repository, env=env, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{round}: {line}\n{done.stderr}"
        # The second time there is nothing to download from.
        links = str(tmp_path / "nothing")
    assert (repository / "libtorch/precompiled/cpu/lib/libtorch.so").is_file()
    if name == "workflow":
        workflow = yaml.safe_load(files_of("cpp-and-rust.md")["workflow.yml"])
        cache = next(one for one in workflow["jobs"]["build"]["steps"] if "cache" in str(one))
        assert cache["with"]["path"] == "libtorch"
        assert str(repository / "libtorch") in (repository / "CMakePresets.json").read_text()
