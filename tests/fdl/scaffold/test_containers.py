"""The containers of a new project: what Docker is told, and the commands that run in them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from fdl.libtorch.catalog import artifacts, default_version
from fdl.scaffold.render import Mode, render, values
from tests.fdl.docker_engine import Engine
from tests.fdl.terminal import outside_container
from tests.rows import each_row
from tests.surroundings import found, of_machine

TORCH = default_version()
NEWEST = artifacts(TORCH, "linux-x86_64")[-1]

DOCKERFILES = [
    (Mode.MOUNTED, "Dockerfile"),
    (Mode.MOUNTED, "Dockerfile.cuda"),
    (Mode.DOCKER, "Dockerfile.cpu"),
    (Mode.DOCKER, "Dockerfile.cuda"),
]


@pytest.fixture
def make(tmp_path):
    """Write a project of some mode and return its folder."""

    def written(mode):
        render(mode.layers, tmp_path / "demo", values("demo", mode, "1.2.3"))
        return tmp_path / "demo"

    return written


# Images ---------------------------------------------------------------------------------------


def instructions(file):
    """The Dockerfile's instructions, with continued lines joined as Docker joins them."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", "")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def hadolint():
    """The linter, or None where its binary does not run."""
    program = shutil.which(
        "hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    try:
        works = program and subprocess.run([program, "--version"], capture_output=True)
    except OSError:
        return None
    return program if works and works.returncode == 0 else None


@pytest.mark.parametrize(("mode", "name"), DOCKERFILES)
def test_the_linter_has_nothing_to_say(make, mode, name):
    program = hadolint()
    if program is None:
        pytest.skip("hadolint does not run here")
    done = subprocess.run([program, "--no-color", make(mode) / name], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(("mode", "name"), DOCKERFILES)
def test_an_image_is_pinned_lean_and_not_for_root(make, mode, name):
    steps = instructions(make(mode) / name)
    base = next(rest for word, rest in steps if word == "FROM")
    if name.endswith("cuda"):
        assert base == "nvidia/cuda:${CUDA_VERSION}-devel-ubuntu24.04"
        assert steps[0] == ("ARG", f"CUDA_VERSION={NEWEST.cuda}.0")
    else:
        assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base)
    runs = [rest for word, rest in steps if word == "RUN"]
    assert "rm -rf /var/lib/apt/lists/*" in next(one for one in runs if "apt-get" in one)
    installs = [one for one in runs if "pip install" in one]
    assert len(installs) == 2
    assert all("--no-cache-dir" in one for one in installs)
    # What changes rarely stands first: torch before the file of the project.
    kinds = [word for word, _ in steps]
    assert steps.index(("RUN", installs[0])) < kinds.index("COPY") < len(kinds)
    assert [rest for word, rest in steps if word == "USER"] == ["1001"]
    assert [rest for word, rest in steps if word == "WORKDIR"][-1] == "/workspace"
    assert kinds.index("USER") > max(i for i, kind in enumerate(kinds) if kind == "RUN")


def pip_calls(file, folder, **arguments):
    """What the RUN lines of a Dockerfile really pass to pip: each run by sh, with a double."""
    double = folder / "double/python"
    double.parent.mkdir()
    double.write_text(
        f'#!/bin/sh\n[ "$1" = -m ] || exec {sys.executable} "$@"\nprintf "%s\\n" "$*" >&2\n'
    )
    double.chmod(0o755)
    defaults = [rest.partition("=") for word, rest in instructions(file) if word == "ARG"]
    variables = {name: value for name, _, value in defaults if value}
    said = []
    for word, rest in instructions(file):
        if word == "RUN" and "pip install" in rest:
            done = subprocess.run(
                ["sh", "-c", rest],
                cwd=file.parent,
                env={"PATH": f"{double.parent}:{os.defpath}", **variables, **arguments},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            said.append(done.stderr.strip())
    return said


@pytest.mark.parametrize(
    ("name", "arguments", "index"),
    [
        ("Dockerfile", {}, "https://download.pytorch.org/whl/cpu"),
        ("Dockerfile.cuda", {}, f"https://download.pytorch.org/whl/{NEWEST.variant}"),
        ("Dockerfile.cuda", {"CUDA_TAG": "12.6"}, "https://download.pytorch.org/whl/cu126"),
        ("Dockerfile.cuda", {"CUDA_TAG": "13.0"}, "https://download.pytorch.org/whl/cu130"),
        ("Dockerfile", {"TORCH_INDEX": "https://host.test/x"}, "https://host.test/x"),
        (
            "Dockerfile.cuda",
            {"TORCH_INDEX": ""},
            f"https://download.pytorch.org/whl/{NEWEST.variant}",
        ),
    ],
)
def test_torch_comes_from_the_index_that_matches(make, tmp_path, name, arguments, index):
    folder = make(Mode.MOUNTED)
    torch, _ = pip_calls(folder / name, tmp_path, **arguments)
    assert torch == f"-m pip install --no-cache-dir --index-url {index} torch=={TORCH}"


def test_the_image_gets_what_pyproject_names_and_not_the_project(make, tmp_path):
    folder = make(Mode.DOCKER)
    _, rest = pip_calls(folder / "Dockerfile.cpu", tmp_path)
    assert rest == "-m pip install --no-cache-dir --requirement requirements.txt"
    named = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    wanted = [*named["dependencies"], *named["optional-dependencies"]["dev"]]
    assert wanted[0] == "flodl[train]==1.2.3"
    assert (folder / "requirements.txt").read_text().splitlines() == wanted
    copied = [rest for word, rest in instructions(folder / "Dockerfile.cpu") if word == "COPY"]
    assert copied == ["pyproject.toml ./"]
    ignore = (folder / ".dockerignore").read_text().splitlines()
    assert [line for line in ignore if not line.startswith("#")] == ["*", "!pyproject.toml"]


def test_libtorch_is_in_the_image_only_where_it_is_not_mounted(make, tmp_path):
    link = "ln -s \"$(python -c 'import torch; print(torch.__path__[0])')\" /usr/local/libtorch"
    for mode, name in DOCKERFILES:
        steps = instructions(make(mode) / name)
        assert (("RUN", link) in steps) == (mode is Mode.DOCKER)
        (variables,) = [rest for word, rest in steps if rest.startswith("LIBTORCH=")]
        assert variables.split()[0] == "LIBTORCH=/usr/local/libtorch"
        shutil.rmtree(tmp_path / "demo")


# Compose --------------------------------------------------------------------------------------


def interpolate(node, variables):
    """``${NAME}`` and ``${NAME:-default}`` in all values, filled in as Compose does."""
    if isinstance(node, dict):
        return {key: interpolate(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [interpolate(value, variables) for value in node]
    if not isinstance(node, str):
        return node
    return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: variables.get(m[1]) or m[2] or "", node)


def compose(folder, **variables):
    """The compose file as Docker understands it."""
    document = yaml.safe_load((folder / "docker-compose.yml").read_text())
    return interpolate(document, {"COMPOSE_PROJECT_NAME": "demo", **variables})


def test_both_services_share_what_makes_them_usable(make, tmp_path):
    for mode in (Mode.MOUNTED, Mode.DOCKER):
        services = compose(make(mode), UID="1234", GID="56")["services"]
        assert list(services) == ["dev", "cuda"]
        for service in services.values():
            assert service["user"] == "1234:56"
            assert service["init"] is True
            assert service["volumes"][0] == ".:/workspace"
            assert service["build"]["context"] == "."
            assert (tmp_path / "demo" / service["build"]["dockerfile"]).is_file()
            # A name without a value is taken over from the environment.
            assert service["environment"] == {
                "FLODL_VERBOSITY": None,
                "FLODL_COLOR": None,
                "HF_HOME": "/workspace/.cache/huggingface",
            }
        assert "deploy" not in services["dev"]
        (device,) = services["cuda"]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        shutil.rmtree(tmp_path / "demo")


def test_mounted_containers_follow_the_active_variant(make):
    folder = make(Mode.MOUNTED)
    services = compose(folder)["services"]
    assert services["dev"]["volumes"][1:] == [
        "./libtorch/precompiled/cpu:/usr/local/libtorch:ro",
    ]
    assert services["cuda"]["volumes"][1:] == [
        f"./libtorch/precompiled/{NEWEST.variant}:/usr/local/libtorch:ro",
    ]
    assert services["cuda"]["image"] == f"demo-cuda:{NEWEST.cuda}"
    services = compose(
        folder,
        LIBTORCH_CPU_PATH="/shared/cpu",
        LIBTORCH_HOST_PATH="./libtorch/builds/sm61",
        CUDA_VERSION="12.6.0",
        CUDA_TAG="12.6",
        TORCH_CPU_INDEX="https://host.test/cpu",
        TORCH_CUDA_INDEX="https://host.test/cu",
    )["services"]
    assert services["dev"]["volumes"][1:] == ["/shared/cpu:/usr/local/libtorch:ro"]
    assert services["cuda"]["volumes"][1:] == ["./libtorch/builds/sm61:/usr/local/libtorch:ro"]
    assert services["cuda"]["image"] == "demo-cuda:12.6"
    given = {"CUDA_VERSION": "12.6.0", "CUDA_TAG": "12.6"}
    assert given.items() <= services["cuda"]["build"]["args"].items()
    assert services["cuda"]["build"]["args"]["TORCH_INDEX"] == "https://host.test/cu"
    assert services["dev"]["build"]["args"]["TORCH_INDEX"] == "https://host.test/cpu"


def test_baked_containers_mount_the_project_alone(make):
    services = compose(make(Mode.DOCKER))["services"]
    assert set(services) == {"dev", "cuda"}
    for service in services.values():
        assert service["volumes"] == [".:/workspace"]


@pytest.mark.parametrize("mode", [Mode.MOUNTED, Mode.DOCKER])
def test_compose_passes_only_arguments_that_the_image_takes(make, mode):
    folder = make(mode)
    services = compose(folder)["services"]
    assert set(services) == {"dev", "cuda"}
    for service in services.values():
        steps = instructions(folder / service["build"]["dockerfile"])
        taken = {rest.partition("=")[0] for word, rest in steps if word == "ARG"}
        assert service["build"]["args"].keys() == taken


@each_row(("name", "image"), [("demo", "demo"), ("My__Net-", "my-net"), ("_-", "project")])
def test_an_image_has_a_name_that_docker_takes(tmp_path, name, image):
    render(Mode.DOCKER.layers, tmp_path / name, values(name, Mode.DOCKER, "1.2.3"))
    service = compose(tmp_path / name, COMPOSE_PROJECT_NAME="")["services"]["cuda"]
    assert service["image"] == f"{image}-cuda:{NEWEST.cuda}"


@pytest.mark.parametrize("mode", [Mode.MOUNTED, Mode.DOCKER])
def test_compose_itself_accepts_the_file(make, mode):
    folder = make(mode)
    docker = found("docker")
    if docker is None:
        pytest.skip("needs Docker")
    machine = {**os.environ, **of_machine()}
    if subprocess.run([docker, "compose", "version"], env=machine, capture_output=True).returncode:
        pytest.skip("needs the compose plugin of Docker")
    done = subprocess.run(
        [docker, "compose", "config", "--format", "json"],
        cwd=folder,
        env=machine,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert services["dev"]["build"]["args"]["TORCH_VERSION"] == TORCH
    assert services["cuda"]["image"] == f"demo-cuda:{NEWEST.cuda}"


# Commands -------------------------------------------------------------------------------------


def plan(folder, *words):
    done = outside_container("--dry-run", "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", [Mode.MOUNTED, Mode.DOCKER])
def test_every_command_runs_in_its_service(make, mode):
    folder = make(mode)
    commands = yaml.safe_load((folder / "fdl.yml").read_text())["commands"]
    assert {name: one.get("docker") for name, one in commands.items()} == {
        "train": None,
        **dict.fromkeys(("test", "build", "lint", "shell"), "dev"),
        **dict.fromkeys(("cuda-train", "cuda-test", "cuda-build", "cuda-shell"), "cuda"),
    }
    assert commands["train"]["path"] == "./train/"
    quick = plan(folder, "train", "quick", "--lr", "0.01")
    assert quick["service"] == "dev"
    assert quick["launch"][:4] == ["docker", "compose", "run", "--rm"]
    assert quick["launch"][-4:-1] == ["dev", "bash", "-c"]
    assert quick["launch"][-1].startswith("cd /workspace/train && python main.py --epochs 3")
    assert quick["launch"][-1].endswith("--lr 0.01")
    cuda = plan(folder, "cuda-train", "--", "quick", "--lr", "0.01")
    assert cuda["launch"][-4:] == ["cuda", "bash", "-c", "fdl train quick --lr 0.01"]
    assert plan(folder, "build")["launch"][-1] == "python -m pip install --user -e '.[dev]'"
    assert not (folder / ".fdl").exists()


def test_what_fdl_knows_reaches_compose(make):
    folder = make(Mode.MOUNTED)
    variant = folder / "libtorch/precompiled/cu126"
    (variant / "lib").mkdir(parents=True)
    (variant / ".arch").write_text("cuda=12.6\n")
    (folder / "libtorch/.active").write_text("precompiled/cu126\n")
    sets = {one["name"]: one["value"] for one in plan(folder, "cuda-train")["variables"]}
    services = compose(folder, **sets)["services"]
    assert services["cuda"]["image"] == "demo-cuda:12.6"
    assert services["cuda"]["build"]["args"]["CUDA_VERSION"] == "12.6.0"
    assert services["cuda"]["volumes"][1].startswith("./libtorch/precompiled/cu126:")
    assert services["dev"]["volumes"][1].startswith("./libtorch/precompiled/cpu:")
    assert services["cuda"]["user"] == f"{os.getuid()}:{os.getgid()}"


@pytest.mark.slow
def test_training_in_a_container_leaves_its_run_in_the_project(make, tmp_path):
    folder = make(Mode.MOUNTED)
    mount = tmp_path / "workspace"
    mount.symlink_to(folder)
    file = folder / "docker-compose.yml"
    file.write_text(file.read_text().replace(".:/workspace", f".:{mount}"))
    services = compose(folder)["services"]
    engine = Engine(tmp_path / "engine", services, workdir=str(mount))
    done = outside_container(
        "train", "quick", "--epochs", "1", cwd=folder, env={"PATH": engine.path}
    )
    assert done.returncode == 0, done.stderr
    assert " on held-out digits\n" in done.stdout
    assert [path.name for path in (folder / "runs").iterdir()] == ["quick"]
    (call,) = engine.runs()
    assert call["argv"][-4:-1] == ["dev", "bash", "-c"]
    assert call["env"]["LIBTORCH_CPU_PATH"] == "./libtorch/precompiled/cpu"


def test_without_gpus_in_docker_the_remedy_is_named(make, tmp_path):
    folder = make(Mode.MOUNTED)
    engine = Engine(tmp_path / "engine", compose(folder)["services"])
    done = outside_container("cuda-train", cwd=folder, env={"PATH": engine.path})
    assert done.returncode == 1
    assert "install the NVIDIA Container Toolkit" in done.stderr
