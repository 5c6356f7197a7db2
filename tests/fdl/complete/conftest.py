"""A project with every kind of command, and what may be typed at each place of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Fdl, Project

FILES = {
    "fdl.yml": """
        description: Everything there is to complete
        commands:
          train:
            description: Train a model
          test: {run: "echo testing", description: "Run: the tests"}
          "my command": {run: "true"}
          "it's": {run: "true"}
          a:b: {run: "true"}
          a:c: {run: "true"}
          broken: {run: "true", path: train}
          nowhere: {path: nowhere}
          orphan: {training: {epochs: 1}}
        """,
    "fdl.ci.yml": """
        commands:
          nightly: {run: "true"}
        """,
    "fdl.cloud.yml": "commands: {launch: {run: 'true'}}",
    "train/fdl.yml": """
        description: Never shown, the parent has one
        entry: python main.py
        commands:
          quick: {training: {epochs: 1}, description: One epoch}
          slow: {training: {epochs: 9}}
          check: {run: "true"}
          tools: {description: What surrounds it}
        training: {lr: 0.1}
        schema:
          collapsed: {Output files: what a run leaves}
          args:
            - {name: data, type: path, required: false}
            - {name: mode, type: string, choices: [fast, full], required: false}
          options:
            model: {type: string, choices: [linear, conv, "big net"], description: Which model}
            epochs: {type: int, default: 3, short: n}
            cache: {type: bool}
            out: {type: path, group: Output files}
            tags: {type: "list[string]", choices: [red, green, blue]}
            ckpt:
              type: string
              completer: "printf 'one\\\\tthe first\\\\ntwo words\\\\n'; echo failed >&2"
        """,
    "train/tools/fdl.yml": """
        entry: python tool.py
        commands:
          deep: {options: {x: 1}}
        """,
    "train/my data/a.txt": "",
    "train/notes.txt": "",
    "top.txt": "",
    "sub dir/b.txt": "",
}


@pytest.fixture
def root(project: Project) -> Path:
    """The project on disk."""
    return project(FILES)


Complete = Callable[..., list[str]]


@pytest.fixture
def complete(fdl: Fdl) -> Complete:
    """The lines that ``fdl __complete SHELL -- WORDS`` prints; nothing else may come of it."""

    def run(
        *words: str, shell: str = "bash", cwd: str = ".", env: dict[str, str] | None = None
    ) -> list[str]:
        session = fdl("__complete", shell, "--", *words, cwd=cwd, env=env)
        assert (session.exit, session.err) == (0, "")
        return session.out.splitlines()

    return run
