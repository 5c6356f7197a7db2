"""The compose file of a project: its services, and where they mount the project."""

# The paths of a Plan are strings.
# ruff: noqa: PTH118, PTH123
from __future__ import annotations

import os

from fdl.base import plain_yaml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
"""Names of the compose file, in Docker's order of preference."""

_DEFAULT_ROOT = "/workspace"
"""The assumed mount point of the project if the compose file does not say."""


def container_root(project: str, service: str) -> str:
    """The folder inside ``service`` where the project's root is mounted."""
    mounts = _compose_document(project, "services", service, "volumes")
    for mount in mounts if isinstance(mounts, list) else ():
        source, target = _source_and_target(mount)
        if source in (".", "./") and target:
            return target.rstrip("/") or "/"
    return _DEFAULT_ROOT


def services(project: str) -> list[str]:
    """The services in the compose file; empty if the file is missing or broken."""
    listed = _compose_document(project, "services")
    return [str(name) for name in listed] if isinstance(listed, dict) else []


def _compose_document(project: str, *path: str) -> object:
    """The value at a path of the compose file; None if the file is broken or lacks it."""
    import yaml

    try:
        # Compose has tags of its own: `!reset` and `!override`.
        document = plain_yaml.load(compose_text(project))
    # Docker itself reports a broken file a moment later, with a better message.
    except (ValueError, yaml.YAMLError):
        return None
    return value_at(document, *path)


def value_at(document: Any, *path: str) -> Any:
    """The value at a path of nested mappings; None if there is none."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def compose_text(project: str) -> str:
    """The text of the compose file; empty if it is missing or unreadable."""
    for name in COMPOSE_FILES:
        try:
            with open(os.path.join(project, name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return ""
    return ""


def _source_and_target(mount: object) -> tuple[object, str]:
    """Source and target of a bind mount in short (``.:/app:ro``) or long syntax; else empty."""
    if isinstance(mount, str):
        source, _, rest = mount.partition(":")
        return source, rest.partition(":")[0]
    if isinstance(mount, dict) and mount.get("type", "bind") == "bind":
        return mount.get("source"), str(mount.get("target") or "")
    return None, ""
