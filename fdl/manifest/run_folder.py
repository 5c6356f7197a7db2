"""The keys of ``output:``, in the table of a manifest: where runs go, and which of them stay."""

from __future__ import annotations

from fdl.manifest.kinds import SWITCH, Key, Section, Text, Whole

KEEP = Section(
    "Keep",
    "Which runs and checkpoints stay when `fdl runs prune` is typed; nothing goes before that.",
    Key("best", Whole(least=0), "The best N runs of each folder stay, by the metric of `by`."),
    Key("newest", Whole(least=0), "The newest N runs of each folder stay."),
    Key(
        "checkpoints",
        Whole(least=0),
        "The best N runs keep their checkpoints, and without `by` the newest N. The other runs "
        "lose theirs.",
    ),
    Key("by", Text(), "The metric that says which runs are the best: `val_loss`, `margin:max`."),
    Key("group", Text(), "A setting: the best runs are counted for each of its values."),
)

OUTPUT = Section(
    "Output",
    "Where a run writes, and where it can be watched.",
    Key("dir", Text(), "Folder that receives the folder of each run: `--output`."),
    Key(
        "monitor",
        Whole(least=0, most=65535),
        "Port of the page that shows the run while it lasts: `--monitor`.",
    ),
    Key("timeline", SWITCH, "Whether to record what every rank does when: `--timeline`."),
    Key("keep", KEEP, "Which runs and checkpoints stay when you type `fdl runs prune`."),
)
