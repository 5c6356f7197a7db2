"""Small programs of other people, and manifests that drive them."""

from __future__ import annotations

import pytest


@pytest.fixture
def driven(project, light_fdl):
    """A project with ``main.py`` and presets: ``driven(PROGRAM, PRESETS)("two", "a.txt")``.

    What a call returns is the output of the program, or what it and fdl complained about.
    """

    def make(program: str, presets: str = "", above: str = "", **more: str):
        files = {name.replace("_yaml", ".yaml"): text for name, text in more.items()}
        below = "".join(f"  {line.strip()}\n" for line in presets.strip().splitlines())
        commands = f"commands:\n{below}" if below else ""
        manifest = f"entry: python main.py\n{above}{commands}"
        project({"fdl.yml": manifest, "main.py": program, **files})

        def call(*words: str) -> str:
            done = light_fdl("-q", *words)
            return done.out.strip() if done.exit == 0 else done.err.strip()

        return call

    return make
