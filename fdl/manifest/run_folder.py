"""The keys of ``output:`` and ``metrics:``, in the table of a manifest: what runs leave."""

from __future__ import annotations

from fdl.manifest.kinds import SWITCH, Judged, Key, Section, Table, Text, Whole

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
    Key(
        "record",
        SWITCH,
        "Whether each start of `entry` leaves a run folder (default: true). Without one, the "
        "program writes directly to the terminal.",
    ),
    Key("keep", KEEP, "Which runs and checkpoints `fdl runs prune` keeps."),
)


def _demand_of_pattern(value: object) -> str:
    import re
    import warnings

    if not isinstance(value, str) or not value:
        return "must be a regular expression, as text"
    try:
        with warnings.catch_warnings():
            # What a later Python may read otherwise is not the author's concern now.
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(value)
    except re.error as problem:
        return f"is not a regular expression: {problem}"
    return ""


PATTERN = Judged(_demand_of_pattern, [{"type": "string", "minLength": 1}], described=False)

METRIC = Section(
    "Metric",
    "Where a metric stands in the output of `entry`.",
    Key(
        "value",
        PATTERN,
        "Regular expression of the value, searched in each line. Its first group is the number.",
        required=True,
    ),
    Key(
        "step",
        PATTERN,
        "Regular expression of the step, searched in the same way; the last one found counts "
        "(default: the values are numbered).",
    ),
)

METRICS = Table(METRIC)
