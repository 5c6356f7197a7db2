"""Fixtures every test may use: a project on disk, and ``fdl`` typed in a terminal."""

from __future__ import annotations

import gc
import multiprocessing.spawn
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import settings

from fdl.base.masking import KNOWN
from fdl.plan.heap import TUNABLES_VARIABLE, tunables
from tests import fork_server, later, surroundings, temporary_folder, typed

pytest_plugins = ["tests.skipped"]

# How long an example takes says what else the machine is doing, and not whether it is right.
settings.register_profile("flodl", deadline=None)
settings.load_profile("flodl")

if not surroundings.are_hidden():
    temporary_folder.make()
    surroundings.hide(Path(tempfile.mkdtemp(prefix="surroundings-")))

# What trainings find out about this machine must not reach the cache of the user's own ones.
os.environ["FLODL_CACHE_DIR"] = tempfile.mkdtemp(prefix="flodl-cache-")

# A background job ignores Ctrl-C, and one started by nohup ignores SIGHUP. Programs that the tests
# start would inherit that, and would not notice the signals that the tests send.
for _name, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_name) is signal.SIG_IGN:
        signal.signal(_name, _handler)

FIXTURES = Path(__file__).parent / "projects"

_FROZEN = pytest.StashKey[int]()
"""How many modules were there when Python's cycle collector was last kept from what is there."""
_LARGE = 100
"""Modules of a library that makes each later collection longer."""


@dataclass(frozen=True)
class Session:
    """What a finished command left on the terminal."""

    exit: int
    out: str
    err: str


Fdl = Callable[..., Session]
Project = Callable[[Mapping[str, str]], Path]


def pytest_configure(config: pytest.Config) -> None:
    """Keep everyday tests on the processor, also on a machine with a GPU."""
    config.pluginmanager.register(typed)
    if "gpu" in config.getoption("markexpr"):
        surroundings.show_devices()
        return
    if Path("/dev/nvidiactl").exists():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _fork_workers(config)


def _fork_workers(config: pytest.Config) -> None:
    """Let the processes that run tests be forks: of one that has imported torch, for all of them.

    Not where coverage is measured: it would not see what was imported before. Nor for tests on a
    GPU, which must not have been used before a fork.
    """
    if getattr(config.option, "tx", None) and not config.getoption("--cov", None):
        os.environ["PYTEST_XDIST_TESTRUNUID"] = config.option.testrunuid = uuid.uuid4().hex
        program = f"popen//python={fork_server.worker_program()}"
        config.option.tx = [program if one == "popen" else one for one in config.option.tx]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep Python's cycle collector from what lives to the end: thousands of tests, and torch."""
    gc.disable()
    try:
        return (yield)
    finally:
        later.IMPORTED.update(sys.modules)
        session.config.stash[_FROZEN] = len(sys.modules)
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Keep it also from what a test was the first to import, such as transformers."""
    if len(sys.modules) >= item.config.stash[_FROZEN] + _LARGE:
        item.config.stash[_FROZEN] = len(sys.modules)
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _no_known_secrets() -> None:
    """A secret of one test is an ordinary text in the next one."""
    KNOWN.forget()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Write a project: ``project({"fdl.yml": "commands: …"})`` returns its folder."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            target = tmp_path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def fixture_project(tmp_path: Path) -> Callable[[str], Path]:
    """Copy one of ``tests/projects`` and return the copy."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(FIXTURES / name, tmp_path / name))

    return copy


def typed_in(folder: Path, path: str | None = None) -> Fdl:
    """What types ``fdl ARGS`` in a folder, with a PATH; by default that of the tests."""
    # As in an activated environment: `python` in a manifest is the one that runs the tests.
    usual = str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", os.defpath)

    def run(
        *args: str,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: float = 60,
    ) -> Session:
        done = fork_server.python(
            *("-m", "fdl", *args),
            cwd=folder / (cwd or "."),
            env={**os.environ, "PATH": path or usual, "CI": "1", **(env or {})},
            stdin=stdin,
            timeout=timeout,
            abrupt=True,
        )
        return Session(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def fdl(tmp_path: Path) -> Fdl:
    """Type ``fdl ARGS`` in the project's folder, without a terminal, and return the session."""
    return typed_in(tmp_path)


@pytest.fixture
def light_fdl(tmp_path: Path) -> Fdl:
    """``fdl``, where the Python programs of a manifest are forks; otherwise as ``torch_fdl``."""
    return typed_in(tmp_path, fork_server.python_on_path(os.environ))


@pytest.fixture
def torch_fdl(tmp_path: Path) -> Fdl:
    """``fdl``, where the programs of a manifest that use flodl do not import torch each time.

    Not for tests of signals and of processes: the program is not a child of fdl.
    """
    return typed_in(tmp_path, training_path(os.environ))


@pytest.fixture
def forked_venv(tmp_path: Path) -> None:
    """Give the project an environment whose Python is a fork, for the programs of flodl itself."""
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (tmp_path / ".venv/pyvenv.cfg").write_text("home = /usr\n", encoding="utf-8")
    env = {**os.environ, TUNABLES_VARIABLE: tunables()}
    (programs / "python").symlink_to(fork_server.torch_program(env))


@pytest.fixture
def forked_spawns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that are spawned be forks, which do not import torch each time."""
    python = fork_server.torch_program(os.environ)
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(python))


def training_path(env: Mapping[str, str]) -> str:
    """A PATH where the programs that fdl starts are forks, if fdl keeps their heap: with flodl."""
    return fork_server.torch_on_path({**env, TUNABLES_VARIABLE: tunables()})
