"""Make a project's environment: images of its compose file, or a virtual environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from fdl.base.questions import Questions
from fdl.base.venv import python_of
from fdl.libtorch.layout import CPU, WHEELS, cuda_variant
from fdl.machine.setup.facts import VENV, Facts, ProjectFacts
from fdl.machine.setup.steps import Program
from fdl.machine.setup.variants import require_driver

TORCH_INDEX = "FLODL_TORCH_INDEX"
"""Variable with the index for torch, instead of PyTorch's own."""


def images(project: ProjectFacts, *, cuda: bool) -> Iterator[Program]:
    """The steps that build a project's images; ``cuda``: there is a GPU, and a variant for it."""
    wanted = ["dev", "cuda"] if cuda else ["dev"]
    for service in wanted:
        if service in project.services:
            yield Program(
                ("docker", "compose", "build", service),
                project.root,
                images=True,
                optional=True,
                consequence=f"commands that run in `{service}` will try to build it first",
            )


def require_choice(
    facts: Facts, project: ProjectFacts, questions: Questions, environ: Mapping[str, str]
) -> None:
    """Choose no torch for a GPU whose driver fails.

    Raises:
        LibtorchError: Neither the user nor the environment has decided.
    """
    if not project.venv_has_torch and not environ.get(TORCH_INDEX):
        require_driver(facts, questions, "a torch", f"{TORCH_INDEX}={WHEELS}/{CPU} fdl setup")


def native(
    facts: Facts, project: ProjectFacts, cuda: str | None, environ: Mapping[str, str]
) -> Iterator[Program]:
    """The steps that make a virtual environment with torch and the project in it.

    torch comes from the index for the CUDA version, without its dependencies. These are installed
    with the project, from the user's own index, which holds more versions of them. A torch without
    CUDA is replaced if a CUDA version is given.
    """
    if not project.has_venv:
        uses_venv = facts.makes_venvs
        make = (sys.executable, "-m", "venv") if uses_venv else ("uv", "venv", "--seed")
        yield Program((*make, VENV), project.root)
    install = _install(facts, project)
    # pip takes a torch without CUDA for the one that is asked for.
    again = ("--force-reinstall",) if cuda and project.venv_torch_is_cpu else ()
    if again or not project.venv_has_torch:
        index = environ.get(TORCH_INDEX) or f"{WHEELS}/{cuda_variant(cuda) if cuda else CPU}"
        yield Program(
            (*install, *again, "--no-deps", "--index-url", index, "torch"),
            project.root,
            optional=True,
            consequence="torch is taken from your own index instead",
        )
    editable = ("--editable", ".") if project.is_package else ()
    yield Program((*install, *editable, "torch"), project.root)


def _install(facts: Facts, project: ProjectFacts) -> tuple[str, ...]:
    """The command that installs into the project's environment, without the packages."""
    python = python_of(VENV)
    own = (python, "-m", "pip", "install")
    if not project.has_venv or project.venv_has_pip:
        return own
    if facts.own_pip:
        return (sys.executable, "-m", "pip", "--python", python, "install")
    return ("uv", "pip", "install", "--python", python) if facts.has_uv else own
