"""Wrapping a plan into ``docker compose run``."""

# The paths of a Plan are strings.
# ruff: noqa: PTH118
from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from fdl.base.compose_file import container_root
from fdl.base.errors import ManifestError
from fdl.base.files import text_of
from fdl.base.masking import PLAN_VARIABLE
from fdl.base.shell_words import quote
from fdl.libtorch.active import compose_variables
from fdl.manifest.node import Variable
from fdl.manifest.variables import names_in_env
from fdl.plan.value import Plan

# These settings of fdl also apply to programs inside the container.
_HANDED_THROUGH = ("FLODL_VERBOSITY", "FLODL_COLOR")
_GPUS = "CUDA_VISIBLE_DEVICES"


def wrap(plan: Plan, inner: Sequence[str], shell: Mapping[str, str], *, terminal: bool) -> Plan:
    """Complete a plan that runs in a compose service.

    Variables go into the container by name only (``-e NAME``). Docker takes their values from its
    own environment, so no value appears in the list of processes.

    Args:
        plan: A plan with its ``service``, the variables for inside, and, as ``cwd``, the folder
            of the command.
        inner: The words after ``bash`` inside; the last one is the shell text.
        shell: fdl's own environment.
        terminal: Whether to allocate a pseudo-terminal.

    Returns:
        The same plan, with ``launch`` set and ``cwd`` moved to the project's root.

    Raises:
        ManifestError: The command's folder is outside the project, so it is not mounted.
    """
    relative = _inside_project(plan)
    *options, script = inner
    names = sorted((one.name for one in plan.variables), key=lambda name: name != PLAN_VARIABLE)
    inside = [name for name in names if name not in _HANDED_THROUGH] + [*_HANDED_THROUGH]
    # If it is not set, the compose file's own value must stay.
    if _GPUS in shell and _GPUS not in names:
        inside.append(_GPUS)
    if relative != "." or plan.kind == "entry":
        root = container_root(plan.root, plan.service or "")
        if relative != ".":
            script = f"cd {quote(f'{root}/{relative}'.replace('//', '/'))} && {script}"
        if plan.kind == "entry":
            inside.insert(0, f"FDL_PROJECT_ROOT={root}")
    plan.launch = ["docker", "compose", "run", "--rm"]
    if not terminal:
        plan.launch.append("-T")
    for variable in inside:
        plan.launch += ["-e", variable]
    plan.launch += [plan.service or "", "bash", *options, script]
    plan.cwd = plan.root
    for name, (value, source) in compose_inputs(plan.root, {*shell, *plan.env}).items():
        plan.set(Variable(name, value, source))
    return plan


def _inside_project(plan: Plan) -> str:
    """The command's folder relative to the project's root, with ``/`` between the parts."""
    relative = os.path.relpath(plan.cwd, plan.root).replace(os.sep, "/")
    if relative == ".." or relative.startswith("../"):
        raise ManifestError(
            f"{plan.origin}: {plan.cwd} lies outside the project {plan.root}, "
            f"so docker service `{plan.service}` cannot see it",
            hint="move the folder into the project, or drop `docker`",
        )
    return relative


def compose_inputs(project: str, taken: Collection[str]) -> dict[str, tuple[str, str]]:
    """Values for the unset variables ``${NAME}`` of compose files: name -> value and origin.

    Args:
        project: Folder of the project.
        taken: Names that already have a value; those in the project's ``.env`` are added.
    """
    inputs = compose_variables(project)
    # Shells do not export the user's id. Files in the mount must belong to the user.
    if os.name != "nt":
        inputs["UID"] = str(os.getuid()), "fdl"
        inputs["GID"] = str(os.getgid()), "fdl"
    # Docker itself reads the variables in the `.env` beside the compose file.
    settings = names_in_env(text_of(os.path.join(project, ".env"), "strict"))
    return {
        name: value for name, value in inputs.items() if name not in taken and name not in settings
    }
