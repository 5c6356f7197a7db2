"""What a sweep is asked to do: the flags of a command line, or a block of the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdl.base.errors import FdlError, ManifestError, UsageError
from fdl.base.masking import KNOWN
from fdl.base.secrets import REDACTED, redact_tokens
from fdl.base.suggest import did_you_mean
from fdl.manifest.node import origin
from fdl.programs.parameters.contract import spelled
from fdl.run.sweeps.axis import Axis, axis, parse, refuse_repeated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.base.global_flags import Work
    from fdl.manifest.node import Node
    from fdl.manifest.select.project import Project

_FLAGS = {
    "--each": "each", "--zip": "zip", "--search": "search", "--trials": "trials", "--goal": "goal",
}  # fmt: skip


class Request:
    """A sweep before it begins.

    Attributes:
        words: The command line of one run, without ``fdl``.
        axes: What varies.
        zip: Whether values are taken side by side.
        search: The sampler, with a seed behind a colon; empty for every combination.
        trials: How many values a search tries.
        goal: The metric that tells which run is better, with its direction; may be empty.
        jobs: How many runs run at once.
        gpus_each: GPUs of each run; 0 leaves the visible ones to all.
        name: The name of its directory; empty for the time at which it begins.
        on: ``slurm`` for a cluster; empty for this machine.
        at_once: How many runs a cluster runs at once, at most; 0 leaves it to the cluster.
    """

    def __init__(
        self, words: Sequence[str], axes: Sequence[Axis], work: Work, name: str = ""
    ) -> None:
        self.words = list(words)
        self.axes = list(axes)
        self.zip = work.zip
        self.search = work.search
        self.trials = work.trials
        self.goal = work.goal
        self.jobs = work.jobs or 1
        self.on = work.on
        self.at_once = work.jobs or 0
        self.gpus_each = work.gpus_each
        self.name = name
        self._check()

    @classmethod
    def of_record(cls, record: Mapping[str, Any], work: Work) -> Request:
        """The request of a sweep that began earlier; ``work`` may have other ``jobs``.

        Raises:
            UsageError: Its command line had a secret, which is not recorded.
        """
        if any(REDACTED in word for word in record["command"]):
            raise UsageError(
                "the sweep cannot be continued: its command line had a secret, which is not "
                "recorded",
                hint="pass the secret in an environment variable, and begin the sweep again",
            )
        work.zip, work.search, work.goal = record["zip"], record["search"], record["goal"]
        work.trials = record["trials"]
        work.jobs = work.jobs or record["jobs"]
        work.gpus_each = work.gpus_each or record["gpus_each"]
        return cls(record["command"], [axis(*one) for one in record["each"].items()], work)

    def record(self) -> dict[str, Any]:
        """The request for ``sweep.json``."""
        each = {one.key: one.source for one in self.axes}
        return {
            "command": KNOWN.texts(redact_tokens(self.words)), "each": each,
            "zip": self.zip, "search": self.search, "trials": self.trials, "goal": self.goal,
            "jobs": self.jobs, "gpus_each": self.gpus_each,
        }  # fmt: skip

    def _check(self) -> None:
        refuse_repeated(self.axes)
        if self.search and not (self.trials and self.goal):
            raise UsageError(
                "`--search` needs `--trials` and `--goal`",
                hint="fdl --search tpe --trials 20 --goal val_loss:min COMMAND --each …",
            )
        if self.trials and not self.search:
            raise UsageError("`--trials` needs `--search`", hint="--search tpe")
        if self.search and self.zip:
            raise UsageError("`--zip` and `--search` exclude each other", hint="remove one of them")


def take_flags(words: Sequence[str], work: Work, declared: Sequence[str]) -> list[str]:
    """Take the flags of a sweep from behind a command, up to ``--``; the other words.

    Args:
        words: The command and its arguments.
        work: Gets the flags.
        declared: Flags that the program has itself. They are left to it.

    Raises:
        UsageError: A value is missing.
    """
    end = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    rest = iter(words[:end])
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag not in _FLAGS or flag in declared:
            kept.append(word)
        elif flag == "--zip":
            work.zip = True
        else:
            work.take(flag, value if equals else next(rest, None))
    return [*kept, *words[end:]]


def of_flags(words: Sequence[str], work: Work) -> Request:
    """The request of a command line.

    Raises:
        UsageError: The flags do not fit together.
    """
    if not work.each:
        raise UsageError(
            "`--zip`, `--search`, `--trials` and `--goal` belong to a sweep",
            hint="fdl COMMAND --each lr=1e-3,3e-3",
        )
    return Request(words, [parse(text) for text in work.each], work)


def of_manifest(project: Project, name: str, work: Work) -> Request:
    """The request of a block under ``sweeps:``; flags that were typed are stronger.

    Raises:
        FdlError: There is no such block, or it is wrong.
    """
    blocks = project.root.node.get("sweeps")
    known = blocks.mapping if blocks else {}
    block = known.get(name)
    if block is None:
        example = f"sweeps: {{{name}: {{command: train, each: {{lr: [0.001, 0.003]}}}}}}"
        others = f"it has: {', '.join(known)}" if known else example
        raise UsageError(
            f"the manifest has no sweep `{name}`", hint=did_you_mean(name, known, others)
        )
    return _of_block(block, name, project, work)


def _of_block(block: Node, name: str, project: Project, work: Work) -> Request:
    import shlex

    each = block.get("each")
    axes = [_axis(key, node, project) for key, node in (each.mapping if each else {}).items()]
    switch = block.get("zip")
    work.zip = work.zip or bool(switch and switch.value)
    for key in ("search", "trials", "goal", "jobs", "gpus_each"):
        node = block.get(key)
        if node is not None and not getattr(work, key):
            setattr(work, key, node.value)
    try:
        words = shlex.split(block.text("command") or "")
        return Request(words, axes, work, name)
    except ValueError as problem:
        raise _at(block.get("command") or block, project, str(problem)) from None
    except UsageError as problem:
        raise _at(block, project, problem.message, problem.hint) from None


def _axis(key: str, node: Node, project: Project) -> Axis:
    value = node.value
    try:
        if isinstance(value, list):
            return axis(key, [spelled(item.value) for item in value])
        return axis(key, spelled(value))
    except UsageError as problem:
        raise _at(node, project, problem.message, problem.hint) from None


def _at(node: Node, project: Project, problem: str, hint: str = "correct it") -> FdlError:
    return ManifestError(f"{origin(node, project.directory)}: {problem}", hint=hint)
