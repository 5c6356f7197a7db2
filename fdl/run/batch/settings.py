"""The ``slurm:`` key of a command -> what submitit asks ``sbatch`` for."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from fdl.base.errors import ManifestError
from fdl.manifest.cluster import minutes
from fdl.manifest.node import origin

if TYPE_CHECKING:
    from fdl.manifest.node import Node
    from fdl.plan.value import Plan

NOTICE_S = 90
"""How long before its time limit a job is told to write a checkpoint."""

_SAME = ("partition", "account", "qos", "constraint", "mem")
_RENAMED = {"nodes": "nodes", "gpus": "gpus_per_node", "cpus": "cpus_per_task"}
_REQUEUES = 10


class Settings:
    """What a job asks for.

    Args:
        plan: The plan of the command; ``plan.slurm`` has its settings, the strongest ones last.

    Attributes:
        nodes: How many machines take part.
        requeues: How often a job that reached its time limit is queued again.
        place: Where the settings stand, as ``file:line:column``; empty without any.
        parameters: The settings as submitit names them.

    Raises:
        ManifestError: There is no time limit.
    """

    def __init__(self, plan: Plan) -> None:
        found: dict[str, Node] = {}
        for one in plan.slurm:
            found.update(one.mapping)
        self.place = origin(plan.slurm[-1], plan.root) if plan.slurm else ""
        self.nodes = int(_plain(found.get("nodes")) or 1)
        requeues = _plain(found.get("requeues"))
        self.requeues = _REQUEUES if requeues is None else int(requeues)
        self.parameters: dict[str, Any] = {
            "job_name": "fdl-" + "-".join(plan.command),
            "ntasks_per_node": 1,
            "signal_delay_s": NOTICE_S,
            # The cluster's own queue goes on with a job whose node has failed.
            "additional_parameters": {"requeue": True},
            # A machine that fails would leave the others waiting for it.
            "srun_args": ["--kill-on-bad-exit=1"],
        }
        for key in _SAME:
            if key in found:
                self.parameters[key] = str(found[key].value)
        for key, name in _RENAMED.items():
            if key in found:
                self.parameters[name] = found[key].value
        limit = minutes(found["time"].value) if "time" in found else None
        if limit is None:
            # submitit would take five minutes, which no training expects.
            raise ManifestError(
                f"{self.place or plan.origin}: `fdl {' '.join(plan.command)}` has no time limit "
                "for the cluster",
                hint='add it to the manifest: slurm: {time: "4:00:00"}',
            )
        self.parameters["time"] = ceil(limit)
        if "setup" in found:
            self.parameters["setup"] = found["setup"].plain()
        if "extra" in found:
            extra = {name: node.value for name, node in found["extra"].mapping.items()}
            self.parameters["additional_parameters"].update(extra)

    def flags(self) -> list[str]:
        """The settings as flags of ``sbatch``, for a dry run."""
        named = {**self.parameters, **self.parameters["additional_parameters"]}
        notice = named.pop("signal_delay_s")
        for key in ("additional_parameters", "setup", "srun_args"):
            named.pop(key, None)
        flags = {key.replace("_", "-"): value for key, value in sorted(named.items())}
        return [
            *(f"--{key}" if value is True else f"--{key}={value}" for key, value in flags.items()),
            f"--signal=USR1@{notice}",
        ]


def _plain(node: Node | None) -> Any:
    return None if node is None else node.value
