"""A machine to diagnose: its GPUs, its installed variants and its variables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import Fdl, Session
from tests.fdl.hardware.fake_nvml import Card, nvidia

SCHEMA = Path(__file__).parents[3] / "docs/reference/diagnose.schema.json"


@cache
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def variant(root: Path, id: str, **facts: str) -> Path:
    """Put a variant into a store: ``variant(root, "precompiled/cu128", archs="8.6")``."""
    folder = root / "libtorch" / id
    (folder / "lib").mkdir(parents=True)
    if facts:
        lines = "".join(f"{key}={value}\n" for key, value in facts.items())
        (folder / ".arch").write_text(lines, encoding="utf-8")
    return folder


def activate(root: Path, id: str) -> None:
    (root / "libtorch").mkdir(exist_ok=True)
    (root / "libtorch" / ".active").write_text(id and f"{id}\n", encoding="utf-8")


@dataclass
class Machine:
    """``machine.report()`` is what ``fdl diagnose --json`` prints on it."""

    root: Path
    environ: dict[str, str]
    fdl: Fdl

    def run(self, *args: str, env: Mapping[str, str] | None = None, **more: Any) -> Session:
        return self.fdl(
            "diagnose", *args, cwd=self.root, env={**self.environ, **(env or {})}, **more
        )

    def report(self, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        done = self.run("--json", env=env)
        found: dict[str, Any] = json.loads(done.out)
        validator().validate(found)
        has_error = any(one["severity"] == "error" for one in found["findings"])
        assert (done.exit, done.err) == (int(has_error), "")
        return found

    def names(self, env: Mapping[str, str] | None = None) -> list[str]:
        """The findings; those that only say where the test runs are left out."""
        found = self.report(env)["findings"]
        return [one["name"] for one in found if one["name"] not in ("container", "wsl")]

    def finding(self, name: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        (found,) = [one for one in self.report(env)["findings"] if one["name"] == name]
        return dict(found)


@pytest.fixture
def machine(tmp_path: Path, fdl: Fdl) -> Callable[..., Machine]:
    """``machine([card("8.6")])``: a project on a machine with these GPUs, without a torch."""

    def make(cards: Sequence[Card] = (), **more: Any) -> Machine:
        root = tmp_path / "project"
        root.mkdir()
        (root / "fdl.yml").write_text("commands: {hello: {run: echo hello}}\n", encoding="utf-8")
        environment(root)
        unset = dict.fromkeys(("LIBTORCH", "LIBTORCH_PATH", "CUDA_DEVICE_ORDER"), "")
        own = {"FLODL_HOME": str(tmp_path / "home"), **unset}
        return Machine(root, {**nvidia(tmp_path / "nvidia", cards, **more), **own}, fdl)

    return make


def environment(root: Path, torch: str = "", python: str = "3.12.4") -> None:
    """Make the project's ``.venv``; ``torch`` is the text of torch's ``version.py``."""
    packages = root / ".venv/lib/python3.12/site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    configuration = f"home = /usr/bin\nversion = {python}\n"
    (root / ".venv/pyvenv.cfg").write_text(configuration, encoding="utf-8")
    if torch:
        (packages / "torch").mkdir()
        (packages / "torch/version.py").write_text(torch, encoding="utf-8")
