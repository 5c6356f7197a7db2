"""The keys of ``output:``, in the table of a manifest: where runs go, and which of them stay."""

from __future__ import annotations

from fdl.manifest.kinds import SWITCH, Key, Section, Text, Whole

KEEP = Section(
    "Keep",
    "Which runs and checkpoints `fdl runs prune` keeps; nothing is removed before you type it.",
    Key("best", Whole(least=0), "Keep the best N runs of each folder, by the metric of `by`."),
    Key("newest", Whole(least=0), "Keep the newest N runs of each folder."),
    Key(
        "checkpoints",
        Whole(least=0),
        "Keep the checkpoints of the best N runs, without `by` of the newest N, and remove the "
        "others.",
    ),
    Key("by", Text(), "Metric that decides which runs are the best: `val_loss`, `margin:max`."),
    Key("group", Text(), "Setting: keep the best N runs for each of its values."),
)

OUTPUT = Section(
    "Output",
    "Folder of the runs, port of the live page, and which runs to keep.",
    Key("dir", Text(), "Folder of the runs; each run gets a folder in it."),
    Key(
        "monitor",
        Whole(least=0, most=65535),
        "Port of the live page.",
    ),
    Key("timeline", SWITCH, "Whether to record what each rank does and when (default: false)."),
    Key("keep", KEEP, "Which runs and checkpoints `fdl runs prune` keeps."),
)
