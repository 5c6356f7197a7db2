"""Verify an exported directory: by itself, in the reference, and against its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import nn

from flodl.errors import FlodlError
from flodl.graph import Graph
from flodl.hf.auto import AutoModel
from flodl.hf.build import build
from flodl.hf.errors import CheckpointMismatchError
from flodl.hf.export import SOURCE_REPO, SOURCE_REVISION
from flodl.hf.families import AutoConfig, EncoderConfig
from flodl.hf.head_kind import HeadKind, named_head
from flodl.hf.hub import locate
from flodl.hf.opening import Opened, open_model
from flodl.hf.reference import (
    LOSS_TOLERANCE,
    Outputs,
    batch_for,
    largest_difference,
    load,
    loss_differences,
    outputs_of_graph,
    outputs_of_reference,
    transformers,
)
from flodl.hf.source import CONFIG, Access, Checkpoint, Directory, read_text
from flodl.hf.task_heads import inputs_of
from flodl.hf.verify_source import (
    Different,
    compare_configs,
    compare_outputs,
    compare_tokenizers,
    side_of,
)
from flodl.hf.weights import keys
from flodl.hf.weights.keys import slots_of
from flodl.hf.weights.stored import StoredFiles, same_bytes
from flodl.hf.weights.writing import expected_from_graph

TOLERANCE = 1e-5
PROMPT = "fab2s writes Rust"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of an export.

    Attributes:
        name: Its name.
        passed: Whether the check passed; None if it was skipped.
        detail: What was found, or why the check was skipped.
    """

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying an exported directory.

    Attributes:
        directory: The directory.
        architecture: The class it says it is; empty if unknown.
        checks: The checks in order.
    """

    directory: Path
    architecture: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The result as plain data."""
        return asdict(self) | {"directory": str(self.directory), "passed": self.passed}

    def as_text(self) -> str:
        """The result as lines of text."""
        words = {True: "PASS", False: "FAIL", None: "-"}
        rows = [f"{words[one.passed]:<5} {one.name:<12} {one.detail}" for one in self.checks]
        total = f"{'PASS' if self.passed else 'FAIL'}  {self.directory} {self.architecture}"
        return "\n".join([*rows, total.rstrip()]) + "\n"


def verify_export(
    directory: Path,
    *,
    family: str | None = None,
    source: str | None = None,
    compare_source: bool = True,
    prompt: str = PROMPT,
    structural: bool = False,
) -> Verification:
    """Check an exported directory.

    The checks run in this order and stop at the first failure:

    1. ``structure``: the configuration names a class, and keys and shapes are those of that class;
    2. ``reference``: ``transformers`` loads it without missing and without unused tensors;
    3. ``bytes``: every tensor has the bytes of the source's tensor, and no tensor is lost;
       ``config``: all fields are those of the source; ``tokenizer``: its files, words and settings
       are those of the source; ``source``: from texts to labels, the reference computes the same
       bits for the export and for the source, each with its own configuration and tokenizer. If the
       configuration says that the export has another dtype, the source is converted to it first;
    4. ``outputs``: flodl computes the same outputs as the reference within 1e-5;
    5. ``losses``: and the same losses within 1e-6, for rows padded on the right and on the left.

    Args:
        directory: The export.
        family: The expected family; None for any.
        source: Repository or directory that the export was made from; by default the one in its
            configuration.
        compare_source: Whether to compare with the source.
        prompt: The text for which outputs are compared.
        structural: Work without ``transformers``: run only the first check, and load it in flodl.

    Raises:
        FlodlError: The source cannot be reached.
        MissingDependencyError: ``transformers`` is not installed.
    """
    try:
        config = _config(directory)
        detail = _structure(directory, config, family)
    except (FlodlError, FileNotFoundError) as error:
        return _verified(directory, "", [Check("structure", False, str(error))])
    name = _name(config)
    checks = [Check("structure", True, detail)]
    if structural:
        checks.append(_guarded("reload", partial(_reload, directory)))
        return _verified(directory, name, checks)
    transformers()  # before any download
    origin = _source(config, source) if compare_source else None
    try:
        run = _Run(directory, config, prompt, origin)
    except FlodlError as error:
        return _verified(directory, name, [*checks, Check("tokenizer", False, str(error))])
    compared = ("bytes", "config", "tokenizer", "source") if origin is not None else ()
    for step in ("reference", *compared, "outputs", "losses"):
        checks.append(_guarded(step, getattr(run, step)))
        if step == "reference" and not checks[-1].passed:
            break
    if origin is None:
        told = "not compared: the export does not name its source; name it with --hub-source"
        checks.append(Check("source", None, told if compare_source else "left out"))
    return _verified(directory, name, checks)


def _verified(directory: Path, name: str, checks: list[Check]) -> Verification:
    return Verification(directory, name, tuple(checks))


def _guarded(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except (Different, FlodlError) as problem:
        return Check(name, False, str(problem))
    except Exception as error:  # any failure of the model is a result of the check
        return Check(name, False, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _config(directory: Path) -> EncoderConfig:
    text = read_text(Directory(directory).require(CONFIG))
    return AutoConfig.from_json_str(text, origin=f"{directory}/config.json")


def _structure(directory: Path, config: EncoderConfig, family: str | None) -> str:
    if family is not None and config.model_type != family:
        raise FlodlError(f"it is of the family {config.model_type}, not {family}")
    known = config.class_prefix + named_head(config).suffix
    if _name(config) != known:
        raise FlodlError(f"architectures names {_name(config)}, which is not {known}")
    stored = StoredFiles(Directory(directory).weight_files())
    shapes = {key: tensor.shape for key, tensor in stored.tensors.items()}
    graph = build(config, pooler=keys.keys_have_pooler(shapes))
    _compare_shapes(expected_from_graph(graph), shapes)
    return f"{len(shapes)} tensors with the names and shapes of {_name(config)}"


def _compare_shapes(
    expected: Mapping[str, Sequence[int]], actual: Mapping[str, Sequence[int]]
) -> None:
    missing = sorted(expected.keys() - actual.keys())
    unused = sorted(actual.keys() - expected.keys())
    shapes = tuple(
        (key, tuple(expected[key]), tuple(actual[key]))
        for key in sorted(expected.keys() & actual.keys())
        if tuple(expected[key]) != tuple(actual[key])
    )
    if missing or unused or shapes:
        raise CheckpointMismatchError(
            "the tensors of the file are not those of the model",
            missing=missing,
            unused=unused,
            shape_mismatches=shapes,
            suggestions=keys.suggestions(missing, {key: key for key in unused}),
        )


def _name(config: EncoderConfig) -> str:
    return config.architectures[0] if config.architectures else config.class_name(HeadKind.BASE)


def _reload(directory: Path) -> str:
    AutoModel.from_pretrained_for_export(directory)
    return "flodl loads it"


def _source(config: EncoderConfig, source: str | None) -> Checkpoint | None:
    """The source of the export; None if neither the caller nor the configuration names it.

    Raises:
        FlodlError: It cannot be reached.
    """
    fields = config.source
    if source is not None:
        return locate(source)
    if isinstance(fields.get(SOURCE_REPO), str):
        revision = fields.get(SOURCE_REVISION)
        if revision is not None and not isinstance(revision, str):
            raise FlodlError(f"{SOURCE_REVISION} of the export is {revision!r}, not a commit")
        return locate(fields[SOURCE_REPO], Access(revision=revision))
    if isinstance(fields.get("_name_or_path"), str) and fields["_name_or_path"]:
        return locate(fields["_name_or_path"])
    return None


class _Run:
    """The checks that need the reference, and the data they share."""

    def __init__(
        self, directory: Path, config: EncoderConfig, prompt: str, origin: Checkpoint | None
    ) -> None:
        self._directory = directory
        self._origin = origin
        self._config = config
        self._prompt = prompt
        self._side = side_of(Directory(directory), config)
        self._enc = self._side.batch(prompt)
        self._inputs = inputs_of(self._enc, config)
        self._theirs: Outputs = {}
        self._without: tuple[str, ...] = ()
        self._model: nn.Module = nn.Identity()

    @property
    def origin(self) -> Checkpoint:
        """The source of the export."""
        if self._origin is None:
            raise Different("the export names no source")
        return self._origin

    @cached_property
    def opened(self) -> Opened:
        """The source, with the head that the export has."""
        return open_model(
            self.origin.name, named_head(self._config), {"revision": self.origin.commit}
        )

    @cached_property
    def graph(self) -> Graph:
        """The export in flodl."""
        return AutoModel.from_pretrained_for_export(self._directory, dtype="float32")

    def reference(self) -> str:
        """Load the export in the reference, and keep its outputs."""
        loaded = load(self._directory, self._directory)
        is_base = named_head(self._config) is HeadKind.BASE
        missing = [key for key in loaded.missing if not (is_base and keys.keys_have_pooler([key]))]
        if missing or loaded.unexpected:
            raise Different(
                f"missing: {', '.join(missing) or 'nothing'}; "
                f"left over: {', '.join(loaded.unexpected) or 'nothing'}"
            )
        self._model = loaded.model
        self._theirs = outputs_of_reference(loaded.model, self._inputs)
        if set(missing) != set(loaded.missing):
            # A pooler that was not stored is random there, so its output means nothing.
            self._without = ("pooler_output",)
            self._theirs.pop("pooler_output", None)
        return f"{_name(self._config)} of transformers loads it"

    def bytes(self) -> str:
        """Compare the tensors with those of the source."""
        mine = StoredFiles(Directory(self._directory).weight_files())
        theirs = StoredFiles(self.origin.weight_files())
        names = frozenset(key for slot in slots_of(build(self._config)) for key in slot.keys)
        arranged = keys.arrange(theirs.tensors, keys.reconciling(names, self._config.prefix))
        pairs = _pairs(mine.tensors, arranged, tied=self._config.tie_word_embeddings)
        added = sorted(mine.tensors.keys() - pairs.keys())
        if added:
            raise Different(f"the source has no {', '.join(added[:5])}")
        # An encoder may lack its pooler without failing another check; all other tensors are
        # required anyway.
        absent = (names - mine.tensors.keys()) & arranged.keys()
        lost = sorted(key for key in absent if keys.keys_have_pooler([key]))
        if lost:
            raise Different(f"the export has no {', '.join(lost)}, which the source has")
        left = mine.read(pairs)
        right = theirs.read(pairs.values())
        differing = [
            key
            for key, other in pairs.items()
            if not same_bytes(left[key], right[other].to(left[key].dtype))
        ]
        if differing:
            raise Different(f"{len(differing)} tensors differ: {', '.join(sorted(differing)[:5])}")
        return f"{len(pairs)} tensors equal to those of {self.origin.name}"

    def config(self) -> str:
        """Compare the configuration with that of the source."""
        return compare_configs(self._config, self.opened)

    def tokenizer(self) -> str:
        """Compare the tokenizer with that of the source."""
        return compare_tokenizers(self._side, side_of(self.origin, self.opened.config))

    def source(self) -> str:
        """Compare the reference's outputs for texts, of the export and of the source."""
        theirs = side_of(self.origin, self.opened.config)
        return compare_outputs(
            self._side, self._model, theirs, self.origin, self._prompt, self._without
        )

    def outputs(self) -> str:
        """Compare the outputs of flodl and of the reference for the export."""
        ours = outputs_of_graph(self.graph, self._config, self._enc)
        apart = largest_difference(ours, self._theirs)
        if not apart <= TOLERANCE:
            raise Different(f"outputs of flodl differ by {apart:.3g}, more than {TOLERANCE:g}")
        return f"flodl computes the same within {apart:.2g}"

    def losses(self) -> str:
        """Compare the losses of flodl and of the reference for the export."""
        found = loss_differences(self._model, self.graph, self._config, batch_for(self._config))
        wrong = [
            f"{name} {apart:.3g}" for name, apart in found.items() if not apart <= LOSS_TOLERANCE
        ]
        if wrong:
            raise Different(f"losses differ by more than {LOSS_TOLERANCE:g}: {', '.join(wrong)}")
        if not found:
            return "an encoder has none"
        return f"flodl computes {', '.join(found)} the same within {max(found.values()):.2g}"


def _pairs(mine: Iterable[str], theirs: Mapping[str, str], *, tied: bool) -> dict[str, str]:
    """For each tensor of the export, the tensor of the source that must be equal."""
    pairs = {}
    for key in mine:
        names = (key, *keys.other_names(key, tied=tied))
        found = next((theirs[name] for name in names if name in theirs), None)
        if found is not None:
            pairs[key] = found
    return pairs
