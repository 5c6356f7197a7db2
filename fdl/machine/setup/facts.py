"""The facts that a setup depends on, gathered once."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fdl.base.compose_file import services
from fdl.base.errors import LibtorchError
from fdl.base.hardware import Nvidia, System, nvidia, system
from fdl.base.venv import site_packages
from fdl.libtorch.active import Variant
from fdl.libtorch.catalog import Artifact, artifacts, default_version, this_platform
from fdl.libtorch.need import needed_by
from fdl.libtorch.store import Store
from fdl.machine.diagnose import environment

VENV = ".venv"
"""The virtual environment of a project, used by the commands of its manifest."""


@dataclass(frozen=True, slots=True)
class ProjectFacts:
    """The project to prepare.

    Attributes:
        root: Its folder.
        services: The services in its compose file.
        is_package: Whether it can be installed: it has a ``pyproject.toml``.
        has_venv: Whether it has a virtual environment.
        venv_has_pip: Whether that environment has pip.
        venv_has_torch: Whether that environment has torch.
        venv_torch_is_cpu: Whether that torch is built without CUDA.
    """

    root: Path
    services: tuple[str, ...] = ()
    is_package: bool = False
    has_venv: bool = False
    venv_has_pip: bool = False
    venv_has_torch: bool = False
    venv_torch_is_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts for the plan.

    Attributes:
        system: The machine.
        nvidia: Its GPUs and their driver.
        root: The project's folder, or the working directory without a project.
        torch: The torch version of the variants to install.
        archives: The archives of that version for this platform.
        no_archives: Why there are none; None if there are some.
        installed: The variants of the store.
        active: The active variant; None for none.
        makes_venvs: Whether this interpreter can make virtual environments with pip.
        own_pip: Whether this interpreter has pip.
        project: The project; None if the user's store is to be prepared.
        needs_libtorch: Whether the project uses libtorch; True for the user's store.
    """

    system: System
    nvidia: Nvidia
    root: Path
    torch: str
    archives: tuple[Artifact, ...] = ()
    no_archives: LibtorchError | None = None
    installed: tuple[Variant, ...] = ()
    active: Variant | None = None
    makes_venvs: bool = True
    own_pip: bool = True
    project: ProjectFacts | None = None
    needs_libtorch: bool = True

    @property
    def has_docker(self) -> bool:
        """Whether images can be built here; not possible inside a container."""
        return self.system.docker not in ("", "container")

    @property
    def has_uv(self) -> bool:
        """Whether uv is installed, which needs neither pip nor ensurepip."""
        return "uv" in self.system.tools

    @property
    def has_toolchain(self) -> bool:
        """Whether virtual environments can be made."""
        return self.makes_venvs or self.has_uv


def gather(store: Store, environ: Mapping[str, str]) -> Facts:
    """Gather facts about the machine, the store and the store's project."""
    archives: tuple[Artifact, ...] = ()
    no_archives = None
    try:
        archives = tuple(artifacts(default_version(), this_platform()))
    except LibtorchError as error:
        no_archives = error
    return Facts(
        system=system(environ),
        nvidia=nvidia(environ),
        root=store.root if store.scope == "project" else Path.cwd(),
        torch=default_version(),
        archives=archives,
        no_archives=no_archives,
        installed=tuple(store.installed()),
        active=store.active,
        makes_venvs=_has("venv") and _has("ensurepip"),
        own_pip=_has("pip"),
        project=_project(store.root) if store.scope == "project" else None,
        needs_libtorch=store.scope == "global" or bool(needed_by(store.root)),
    )


def _project(root: Path) -> ProjectFacts:
    venv = root / VENV
    has_venv = (venv / "pyvenv.cfg").is_file()
    packages = [Path(one) for one in site_packages(str(venv))]

    def holds(name: str) -> bool:
        return has_venv and any((folder / name / "__init__.py").is_file() for folder in packages)

    torch = environment.find(root, {}).torch if has_venv else None
    return ProjectFacts(
        root=root,
        services=tuple(services(str(root))),
        is_package=(root / "pyproject.toml").is_file(),
        has_venv=has_venv,
        venv_has_pip=holds("pip"),
        venv_has_torch=holds("torch"),
        venv_torch_is_cpu=torch is not None and not torch.cuda,
    )


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
