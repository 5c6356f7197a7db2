"""``fdl setup``, typed: on a machine without a network, with the GPUs and the Docker of a test."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import fork_server
from tests.fdl.fetch.server import Server
from tests.fdl.hardware.fake_nvml import card, nvidia, without_nvidia
from tests.fdl.libtorch.archives import archive, listed
from tests.fdl.terminal import Terminal

# Of a version whose archives have no digests in the catalog, made-up ones can stand for them.
TORCH = "2.11.0"

PROGRAM = f"""
import os, sys
from fdl.base.hardware import machine
from fdl.libtorch import catalog
catalog._document()["default"] = "{TORCH}"
if os.environ.get("TEST_OUTSIDE"):
    machine.in_container = lambda root: False
if os.environ.get("TEST_WITHOUT_ENSUREPIP"):
    sys.modules["ensurepip"] = None
from fdl.cli.entry import main
sys.exit(main(sys.argv[1:]))
"""

BACKEND = """
import pathlib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "demo-1.0-py3-none-any.whl"
    info = "demo-1.0.dist-info"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.writestr("demo.pth", str(pathlib.Path.cwd() / "src"))
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""

PROJECT = {
    "fdl.yml": "description: Demo\n",
    "pyproject.toml": """
        [build-system]
        requires = []
        build-backend = "backend"
        backend-path = ["."]
        [project]
        name = "demo"
        version = "1.0"
        """,
    "backend.py": BACKEND,
    "src/demo.py": "answer = 42\n",
}

COMPOSE = {
    "fdl.yml": "description: Demo\n",
    "docker-compose.yml": "services: {dev: {build: .}, cuda: {build: .}}\n",
}

DOCKER = f"""#!{sys.executable} -IB
import json, os, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print("Docker version 27.3.1, build ce12230"))
with open(os.environ["TEST_DOCKER_LOG"], "a") as log:
    log.write(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]) + "\\n")
print("building", *sys.argv[1:])
if sys.argv[-1] == os.environ.get("TEST_DOCKER_STOPS"):
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)
sys.exit(sys.argv[-1] in os.environ.get("TEST_DOCKER_FAILS", "").split())
"""


def index(folder, *wheels):
    """A simple package index as files, and its address."""
    for name in {wheel.name.partition("-")[0] for wheel in wheels}:
        (folder / name).mkdir(parents=True, exist_ok=True)
        links = "".join(f'<a href="{wheel.as_uri()}">{wheel.name}</a>' for wheel in wheels)
        (folder / name / "index.html").write_text(
            f"<!DOCTYPE html><html><body>{links}</body></html>"
        )
    folder.mkdir(exist_ok=True)
    return folder.as_uri()


def torch_wheel(folder, version):
    folder.mkdir(exist_ok=True)
    file = folder / f"torch-{version}-py3-none-any.whl"
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("torch/__init__.py", f"__version__ = {version!r}\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return file


def installed(root, id="precompiled/cpu", **facts):
    """Put a variant into a store, as if it had been installed before, and into use."""
    folder = root / "libtorch" / id
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/libtorch.so").write_bytes(b"")
    known = {"cuda": "none", "torch": TORCH, "archs": "cpu", **facts}
    (folder / ".arch").write_text("".join(f"{key}={value}\n" for key, value in known.items()))
    (folder / "build-version").write_text(f"{TORCH}+{id.rpartition('/')[2]}\n")
    (root / "libtorch/.active").write_text(f"{id}\n")


@pytest.fixture
def variables(tmp_path):
    """Variables of a machine without GPUs, network, Docker and a home that anybody has used."""
    (tmp_path / "home").mkdir()
    return {
        **without_nvidia(tmp_path / "nvidia"),
        "HOME": str(tmp_path / "home"),
        "FLODL_HOME": str(tmp_path / "home/.flodl"),
        "CI": "",
        "FDL_NO_UPDATE_CHECK": "1",
        "NO_COLOR": "1",
        "NO_PROXY": "127.0.0.1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index(tmp_path / "nothing"),
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "FLODL_TORCH_INDEX": index(
            tmp_path / "cpu-index", torch_wheel(tmp_path / "w", "2.11.0+cpu")
        ),
    }


@pytest.fixture
def setup(variables, tmp_path):
    """Type ``fdl setup ARGS`` where nobody answers."""

    def run(*args, cwd=tmp_path, env=None, before=()):
        return fork_server.python(
            *("-c", PROGRAM, *before, "setup", *args),
            cwd=cwd,
            env={**os.environ, **variables, **(env or {})},
            timeout=250,
            abrupt=True,
        )

    return run


@pytest.fixture
def mirror(variables):
    """A mirror with the archives of the version, which every set-up of the test uses."""
    with Server() as server:
        for variant in ("cpu", "cu128"):
            server.put(f"/{listed(TORCH, variant).path}", archive(TORCH, variant))
        variables["FDL_LIBTORCH_MIRROR"] = server.url("")
        yield server


@pytest.fixture
def docker(tmp_path, variables):
    """A Docker, outside of every container, and what it was called with."""
    program = tmp_path / "docker-bin/docker"
    program.parent.mkdir()
    program.write_text(DOCKER)
    program.chmod(0o755)
    log = tmp_path / "docker.jsonl"
    variables["PATH"] = f"{program.parent}{os.pathsep}{variables['PATH']}"
    variables |= {"TEST_OUTSIDE": "1", "TEST_DOCKER_LOG": str(log)}

    def calls():
        import json

        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    return calls


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# libtorch


@pytest.mark.usefixtures("mirror")
def test_a_machine_without_cards_gets_the_cpu_variant_in_use(setup, tmp_path):
    done = setup("-y")
    assert done.returncode == 0, done.stderr
    store = tmp_path / "home/.flodl/libtorch"
    assert (store / ".active").read_text() == "precompiled/cpu\n"
    assert (store / "precompiled/cpu/lib/libtorch.so").is_file()
    assert "GPU       none found\n" in done.stdout
    assert "fdl libtorch install cpu" in done.stdout
    assert "Next:\n" in done.stdout
    again = setup()
    assert again.returncode == 0
    assert "Nothing is left to do." in again.stdout
    assert "libtorch  precompiled/cpu\n" in again.stdout


@pytest.mark.usefixtures("mirror")
def test_a_card_gets_its_variant_beside_the_one_for_the_processor(setup, tmp_path):
    done = setup(env=nvidia(tmp_path / "nvidia", [card("8.6", "Good GPU")]))
    assert done.returncode == 0, done.stderr
    store = tmp_path / "home/.flodl/libtorch"
    assert (store / ".active").read_text() == "precompiled/cu128\n"
    assert (store / "precompiled/cpu/lib").is_dir()
    assert "GPU       [0] Good GPU -- sm_86, 24 GB\n" in done.stdout


@pytest.mark.slow
def test_an_archive_that_cannot_be_had_ends_it(setup, mirror, tmp_path):
    mirror.resources.clear()
    unreachable = {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    done = setup("-y", env=unreachable)
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "home/.flodl/libtorch/.active").exists()


def test_mixed_cards_without_anybody_to_ask_get_the_best_there_is(setup, tmp_path):
    cards = nvidia(tmp_path / "nvidia", [card("6.1", bus=1), card("12.0", bus=2)])
    done = setup("--dry-run", env=cards)
    assert done.returncode == 0
    assert "  fdl libtorch install cu126\n" in done.stdout
    assert "cu126 leaves out [1] NVIDIA Test 12.0 (sm_120)" in done.stderr
    assert 'hint: fdl libtorch build --archs "6.1;12.0"' in done.stderr


def test_a_driver_in_trouble_is_told_with_its_remedy(setup, tmp_path):
    broken = nvidia(tmp_path / "nvidia", fail={"nvmlInitWithFlags": 18})
    done = setup("-n", env=broken)
    assert done.returncode == 0
    assert "warning: " in done.stderr
    assert "hint: " in done.stderr


# Dry runs and refusals


@pytest.mark.parametrize(
    "flags", [{"args": ["-n"]}, {"args": ["--dry-run", "-y"]}, {"before": ["-n"]}]
)
def test_a_dry_run_shows_the_steps_and_does_nothing(setup, project, tmp_path, flags):
    root = project({f"demo/{name}": text for name, text in PROJECT.items()}) / "demo"
    before = listing(tmp_path)
    done = setup(*flags.get("args", []), before=flags.get("before", []), cwd=root)
    assert (done.returncode, done.stderr) == (
        0,
        "no NVIDIA GPU found: the CPU build is enough\n",
    )
    assert "libtorch" not in done.stdout.replace(sys.executable, "")
    address = (tmp_path / "cpu-index").as_uri()
    shown = done.stdout.partition("Would do:\n")[2].splitlines()
    steps = [
        f"{sys.executable} -m venv .venv",
        f".venv/bin/python -m pip install --no-deps --index-url {address} torch",
        ".venv/bin/python -m pip install --editable . torch",
    ]
    assert [line.strip() for line in shown if line] == steps
    assert listing(tmp_path) == before

    (root / "CMakeLists.txt").write_text("find_package(Torch REQUIRED)\n")
    done = setup(*flags.get("args", []), before=flags.get("before", []), cwd=root)
    assert done.returncode == 0
    shown = done.stdout.partition("Would do:\n")[2].splitlines()
    assert [line.strip() for line in shown if line] == ["fdl libtorch install cpu", *steps]


def test_neither_docker_nor_virtual_environments_is_an_error_with_instructions(setup, tmp_path):
    # Without the tools of the environment that runs the tests: uv makes environments, too.
    done = setup("-y", env={"TEST_WITHOUT_ENSUREPIP": "1", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 1
    assert "cannot make virtual environments" in done.stdout
    assert "error: there is neither Docker nor a Python" in done.stderr
    assert "hint: on Debian and Ubuntu: sudo apt install python3-venv" in done.stderr
    assert listing(tmp_path / "home") == []


# Native


def said(root, code):
    return subprocess.run(
        [root / ".venv/bin/python", "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_native_makes_an_environment_with_torch_and_the_project(setup, project, tmp_path):
    root = project({f"demo/{name}": text for name, text in PROJECT.items()}) / "demo"
    installed(root)
    done = setup("-y", cwd=root / "src")
    assert done.returncode == 0, done.stderr
    code = "import demo, torch; print(demo.answer, torch.__version__)"
    assert said(root, code) == "42 2.11.0+cpu\n"
    assert "fdl --help" in done.stdout
    assert not (tmp_path / "home/.flodl").exists()

    again = setup("-y", cwd=root)
    assert again.returncode == 0, again.stderr
    steps = again.stdout.partition("Steps:\n")[2].partition("\n\n")[0]
    assert steps.split("\n") == ["  .venv/bin/python -m pip install --editable . torch"]


@pytest.mark.slow  # makes an environment once more
def test_without_pytorchs_index_torch_comes_from_ones_own(setup, project, tmp_path):
    root = project({"demo/fdl.yml": "description: Demo\n"}) / "demo"
    installed(root)
    own = index(tmp_path / "own", torch_wheel(tmp_path / "own-wheels", "2.13.0"))
    env = {"FLODL_TORCH_INDEX": index(tmp_path / "empty"), "PIP_INDEX_URL": own}
    done = setup("-y", cwd=root, env=env)
    assert done.returncode == 0, done.stderr
    assert "failed with exit code 1; torch is taken from your own index instead" in done.stderr
    assert "warning: 1 of 3 steps failed" in done.stderr
    assert said(root, "import torch; print(torch.__version__)") == "2.13.0\n"


@pytest.mark.slow  # makes an environment once more
def test_a_project_that_cannot_be_installed_ends_it(setup, project):
    broken = {**PROJECT, "backend.py": "raise RuntimeError('no such luck')\n"}
    root = project({f"my demo/{name}": text for name, text in broken.items()}) / "my demo"
    installed(root)
    done = setup("-y", cwd=root)
    assert done.returncode == 1
    assert "error: `.venv/bin/python -m pip install --editable . torch` failed" in done.stderr
    assert f"try again with: cd '{root}' && .venv/bin/python -m pip" in done.stderr


# Docker


def test_docker_builds_the_images_with_what_the_compose_file_refers_to(
    setup, docker, project, tmp_path
):
    root = project({f"demo/{name}": text for name, text in COMPOSE.items()}) / "demo"
    installed(root, "precompiled/cu126", cuda="12.6", archs="6.1")
    env = {
        **nvidia(tmp_path / "nvidia", [card("6.1")]),
        "PATH": f"{tmp_path / 'docker-bin'}{os.pathsep}{os.environ['PATH']}",
    }
    done = setup("-y", cwd=root, env=env)
    assert done.returncode == 0, done.stderr
    assert "Docker    27.3.1\n" in done.stdout
    (dev, cwd, variables), (cuda, *_) = docker()
    assert (dev, cuda) == (["compose", "build", "dev"], ["compose", "build", "cuda"])
    assert cwd == str(root)
    assert variables["CUDA_VERSION"] == "12.6.0"
    assert variables["LIBTORCH_HOST_PATH"] == "./libtorch/precompiled/cu126"
    assert variables["UID"] == str(os.getuid())
    assert not (root / ".venv").exists()


def test_what_the_user_has_set_for_compose_stays(setup, docker, project):
    root = project({f"demo/{name}": text for name, text in COMPOSE.items()}) / "demo"
    (root / ".env").write_text("LIBTORCH_CPU_PATH=./mine\n")
    installed(root)
    assert setup("-y", cwd=root, env={"UID": "4711"}).returncode == 0
    ((_, _, variables),) = docker()
    assert "LIBTORCH_CPU_PATH" not in variables
    assert variables["UID"] == "4711"
    assert variables["LIBTORCH_HOST_PATH"] == "./libtorch/precompiled/cpu"


@pytest.mark.usefixtures("docker")
def test_an_image_that_fails_is_a_warning(setup, project):
    root = project({f"demo/{name}": text for name, text in COMPOSE.items()}) / "demo"
    installed(root)
    done = setup("-y", cwd=root, env={"TEST_DOCKER_FAILS": "dev"})
    assert done.returncode == 0
    assert "warning: `docker compose build dev` failed with exit code 1" in done.stderr
    assert f"hint: cd {root} && docker compose build dev" in done.stderr
    assert "Next:\n" in done.stdout


def test_after_a_signal_no_further_step_runs(setup, docker, project, tmp_path):
    root = project({f"demo/{name}": text for name, text in COMPOSE.items()}) / "demo"
    installed(root, "precompiled/cu126", cuda="12.6", archs="6.1")
    machine = nvidia(tmp_path / "nvidia", [card("6.1")])
    path = f"{tmp_path / 'docker-bin'}{os.pathsep}{os.environ['PATH']}"
    done = setup("-y", cwd=root, env={**machine, "PATH": path, "TEST_DOCKER_STOPS": "dev"})
    assert done.returncode == 143
    assert "`docker compose build dev` received SIGTERM, so no further step was run" in done.stderr
    assert [words for words, *_ in docker()] == [["compose", "build", "dev"]]


# Somebody at the terminal


@pytest.fixture
def terminal(variables, tmp_path):
    """Type ``fdl setup ARGS`` on a terminal."""

    def start(*args, cwd=tmp_path, env=None):
        env = {**variables, **(env or {})}
        return Terminal("setup", *args, cwd=cwd, env=env, program=PROGRAM)

    return start


def test_a_person_is_asked_about_mixed_cards_and_about_the_path(terminal, tmp_path):
    installed(tmp_path / "home/.flodl")
    cards = nvidia(tmp_path / "nvidia", [card("6.1", bus=1), card("12.0", bus=2)])
    with terminal(env=cards) as session:
        session.read_until("Choose [5]: ")
        assert "1  build libtorch for 6.1;12.0" in session.text
        session.press("\r")
        session.read_until("Put fdl on your PATH, as ~/.local/bin/fdl? [y/N] ")
        session.press("y\r")
        assert session.finish() == 0
    assert "Linked ~/.local/bin/fdl to " in session.text
    assert "is not on your PATH" in session.text
    assert os.access(tmp_path / "home/.local/bin/fdl", os.X_OK)
    assert (tmp_path / "home/.flodl/libtorch/.active").read_text() == "precompiled/cpu\n"


def test_enter_keeps_a_cuda_variant_and_installs_nothing_into_the_home(terminal, tmp_path):
    installed(tmp_path / "home/.flodl", "precompiled/cu126", cuda="12.6", archs="6.1")
    with terminal() as session:
        session.read_until("precompiled/cu126 is active. Install libtorch again? [y/N] ")
        session.press("\r")
        session.read_until("[y/N] ")
        session.read_until("Put fdl on your PATH")
        session.press("\r")
        assert session.finish() == 0
    assert "precompiled/cu126 is active and stays" in session.text
    assert not (tmp_path / "home/.local").exists()


@pytest.mark.parametrize("quiet", [["-y"], ["--non-interactive"]])
def test_non_interactive_asks_nothing_on_a_terminal_either(terminal, tmp_path, quiet):
    installed(tmp_path / "home/.flodl", "precompiled/cu126", cuda="12.6", archs="6.1")
    with terminal(*quiet) as session:
        assert session.finish() == 0
    assert "[y/N]" not in session.text
    assert not (tmp_path / "home/.local").exists()


def test_an_fdl_that_is_there_already_is_not_offered(terminal, tmp_path):
    installed(tmp_path / "home/.flodl")
    program = Path(tmp_path / "home/.local/bin/fdl")
    program.parent.mkdir(parents=True)
    program.write_text("mine\n")
    with terminal() as session:
        assert session.finish() == 0
    assert "Put fdl on your PATH" not in session.text
    assert program.read_text() == "mine\n"
