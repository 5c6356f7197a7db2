"""Wrapping a plan into ``docker compose run``."""

# The paths of a Plan are strings.
# ruff: noqa: PTH118, PTH123
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fdl.dispatch.compose import quote
from fdl.errors import ManifestError
from fdl.plan import Plan

COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
"""Names of the compose file, in Docker's own order of preference."""

DEFAULT_ROOT = "/workspace"
"""Where the project is taken to be mounted when the compose file does not say."""

# Handed through from fdl's own environment; the values are not repeated on the command line.
_HANDED_THROUGH = ("FLODL_VERBOSITY", "FLODL_COLOR")


def wrap(plan: Plan, inner: str, variables: Mapping[str, str | None], *, terminal: bool) -> Plan:
    """Complete a plan that runs in a compose service.

    Args:
        plan: A plan with its ``service`` and, as ``cwd``, the folder the command belongs to.
        inner: The shell text to run inside.
        variables: Further variables for inside; a None value is taken from fdl's environment.
        terminal: Whether a pseudo-terminal makes sense.

    Returns:
        The same plan, with ``launch`` set and ``cwd`` moved to the project's root.

    Raises:
        ManifestError: The command's folder is not mounted, being outside the project.
    """
    relative = os.path.relpath(plan.cwd, plan.root).replace(os.sep, "/")
    if relative == ".." or relative.startswith("../"):
        raise ManifestError(
            f"{plan.origin}: {plan.cwd} lies outside the project {plan.root}, "
            f"so docker service `{plan.service}` cannot see it",
            hint="move the folder into the project, or drop `docker`",
        )
    inside: dict[str, str | None] = {**variables, **dict.fromkeys(_HANDED_THROUGH)}
    if relative != "." or plan.kind == "entry":
        root = container_root(plan.root, plan.service or "")
        if relative != ".":
            inner = f"cd {quote(f'{root}/{relative}'.replace('//', '/'))} && {inner}"
        if plan.kind == "entry":
            inside = {"FDL_PROJECT_ROOT": root, **inside}
    plan.launch = ["docker", "compose", "run", "--rm"]
    if not terminal:
        plan.launch.append("-T")
    for name, value in inside.items():
        plan.launch += ["-e", name if value is None else f"{name}={value}"]
    plan.launch += [plan.service or "", "bash", "-c", inner]
    plan.cwd = plan.root
    return plan


def container_root(project: str, service: str) -> str:
    """The folder inside ``service`` where the project's root is mounted."""
    for mount in _volumes(project, service):
        source, target = _source_and_target(mount)
        if source in (".", "./") and target:
            return target.rstrip("/") or "/"
    return DEFAULT_ROOT


def _volumes(project: str, service: str) -> list[Any]:
    """The service's ``volumes:``; empty when the compose file is missing, broken or silent."""
    document: Any = _compose_document(project)
    for key in ("services", service, "volumes"):
        if not isinstance(document, dict):
            return []
        document = document.get(key)
    return document if isinstance(document, list) else []


def _compose_document(project: str) -> object:
    import yaml

    class Loader(yaml.SafeLoader):
        """Takes Compose's own tags (``!reset``, ``!override``) for plain values."""

    def untagged(loader: Loader, node: yaml.Node) -> object:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        return node.value

    Loader.add_constructor(None, untagged)
    for name in COMPOSE_FILES:
        try:
            with open(os.path.join(project, name), encoding="utf-8") as file:
                return yaml.load(file, Loader)  # noqa: S506 -- a SafeLoader
        except FileNotFoundError:
            continue
        # Docker itself reports a broken file a moment later, and better than fdl could.
        except (OSError, ValueError, yaml.YAMLError):
            return None
    return None


def _source_and_target(mount: object) -> tuple[object, str]:
    """Of a bind mount in short (``.:/app:ro``) or long syntax; of anything else, nothing."""
    if isinstance(mount, str):
        source, _, rest = mount.partition(":")
        return source, rest.partition(":")[0]
    if isinstance(mount, dict) and mount.get("type", "bind") == "bind":
        return mount.get("source"), str(mount.get("target") or "")
    return None, ""
