"""What journeys share: one installed environment, and a new person for each of them.

A journey is long: mark its file ``slow``, and give it a time limit that includes the installation.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import browser, chromium  # noqa: F401 - fixtures
from tests.journeys.person import Person, clean, copied, finished

ROOT = Path(__file__).parent.parent.parent

Figure = Callable[[str, float], None]

INSTALLATION = 900
"""Seconds that the installation may take."""

# As scripts/quickstart.sh installs, with a wheel in place of the checkout.
_INSTALL = """
set -euo pipefail
here=$1
. "$2/scripts/venv.sh"
make_venv
install_torch
pip_install "$3[train]"
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT]
    finished(build, env=clean(folder), limit=120)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A virtual environment with ``flodl[train]`` from the wheel, and nothing else.

    pip installs it from the registries of this machine with the versions of constraints.txt.
    Every process of pytest makes one. Journeys only read it: for more packages, see
    ``own_environment``.
    """
    folder = tmp_path_factory.mktemp("installed")
    shutil.copy(ROOT / "constraints.txt", folder)
    home = tmp_path_factory.mktemp("home")
    install = ["bash", "-c", _INSTALL, "install", folder, ROOT, wheel]
    finished(install, env=clean(home), limit=INSTALLATION)
    yield folder / ".venv"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own_environment(installed: Path, tmp_path: Path) -> Path:
    """A copy of the installed environment, into which the journey may install more."""
    return copied(installed, tmp_path / "environment")


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Callable[..., Person]]:
    """Make persons: ``people(environment)``; each has an empty home and an empty folder.

    At the end every program of theirs is ended, and a program that was still there is a failure.
    """
    made: list[Person] = []

    def make(environment: Path | None = None, **variables: str) -> Person:
        home = tmp_path / f"home{len(made) or ''}"
        folder = home / "work"
        folder.mkdir(parents=True)
        made.append(Person(home, folder, environment, variables))
        return made[-1]

    yield make
    left = [line for person in made for line in person.leave()]
    assert not left, f"still running at the end of the journey: {left}"


@pytest.fixture
def person(people: Callable[..., Person], installed: Path) -> Person:
    """A person in whose activated environment flodl is installed."""
    return people(installed)


@pytest.fixture
def newcomer(people: Callable[..., Person]) -> Person:
    """A person who has installed nothing yet."""
    return people()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Record a figure with the results of the test: a property in the file of ``--junitxml``."""

    def record(name: str, value: float) -> None:
        # `record_property` does this, too, but warns about files that are not of the old format.
        request.node.user_properties.append((name, round(value, 1)))
        print(f"{name}: {value:.1f}")

    return record
