"""``fdl runs``: what trainings leave behind, and trainings that still run."""

from __future__ import annotations

from fdl.cli.commands.verb import Group

verbs = Group(
    "runs",
    "List, compare, follow, act on, label, import and delete runs.",
    {
        "list": "runs_list",
        "show": "runs_look",
        "compare": "runs_look",
        "open": "runs_look",
        "tail": "runs_look",
        "verify": "runs_look",
        "ui": "runs_look",
        "diff": "runs_look",
        "import": "runs_write",
        "tag": "runs_write",
        "note": "runs_write",
        "rm": "runs_remove",
        "prune": "runs_remove",
        "tell": "runs_write",
    },
)
