"""Two hosts with ssh, and a project on both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fdl.hosts.hosts import NAMES, ROOT, Hosts, behind_a_gate, hosts, obstacle


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Alpha and beta."""
    if why := obstacle():
        pytest.skip(why)
    with hosts(tmp_path_factory.mktemp("ssh")) as made:
        yield made


@pytest.fixture(scope="session")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Alpha and beta behind a gate, and a laptop before it."""
    if why := obstacle():
        pytest.skip(why)
    with behind_a_gate(tmp_path_factory.mktemp("ssh")) as made:
        yield made


MANIFEST = """
hosts:
  alpha: {{folder: {folder}/alpha, python: {python}, env: {{PYTHONPATH: {root}}}{alpha}}}
  beta: {{folder: {folder}/beta, python: {python}, env: {{PYTHONPATH: {root}}}{beta}}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    """Make a project of some files in git on alpha, and the same on beta; alpha's folder."""

    def make(
        files: Mapping[str, str], *, alpha: str = "", beta: str = "", copied: bool = True
    ) -> Path:
        told = {"folder": tmp_path, "python": sys.executable, "root": ROOT}
        text = files["fdl.yml"] + MANIFEST.format(**told, alpha=alpha, beta=beta)
        for name in NAMES if copied else NAMES[:1]:
            for path, content in {**files, "fdl.yml": text}.items():
                file = tmp_path / name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
        for words in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", "-C", str(tmp_path / "alpha"), *words], check=True)
        return tmp_path / "alpha"

    return make
