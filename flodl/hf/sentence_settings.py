"""Settings of sentence embeddings: ``modules.json`` of a directory, and how vectors compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from flodl.hf.errors import CheckpointFormatError, ConfigError
from flodl.hf.source import Checkpoint, json_object, json_value
from flodl.hf.text.files import OWN_NAMES

Pooling: TypeAlias = Literal["mean", "cls", "max", "pooler"]
"""How the vectors of all tokens become one vector."""

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

Similarity: TypeAlias = Literal["cosine", "dot", "euclidean", "manhattan"]
"""How similar two vectors are; larger is more similar, so distances are negative."""

SIMILARITIES: Final[tuple[Similarity, ...]] = get_args(Similarity)

Compare = Callable[[Tensor, Tensor], Tensor]

_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_POOLING = "1_Pooling/config.json"
# Older directories name the file after the family of the model; it was ever made for these.
_MODEL_FILES = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "albert", "xlm-roberta", "camembert", "xlnet")
)
COMPANIONS: Final = (*sorted(OWN_NAMES), _MODULES, _PROMPTS, *_MODEL_FILES, _POOLING)
"""The tokenizer's files, and those that say how sentence embeddings are made."""

# Older files have a flag per kind of pooling, newer files name the kind.
_FLAGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


@dataclass(frozen=True, slots=True)
class SentenceSettings:
    """How the vectors of tokens become one vector per text.

    Attributes:
        pooling: ``"mean"`` or ``"max"`` over the tokens, ``"cls"`` (the first token), or
            ``"pooler"`` (the output of the model's pooler for the first token).
        normalize: Scale vectors to length 1.
        max_length: Tokens to cut to; None for the limit of the model or its tokenizer.
        lower_case: Convert texts, with the prompt, to lower case before they are encoded.
        prompt: Put before every text.
        subfolder: Folder of the model, relative to the directory; empty for the directory itself.
        prompts: Further prompts by name, for :meth:`SentenceTransformer.encode`.
        include_prompt: Whether the tokens of a prompt count in the pooling; False allows no prompt.
        similarity: The function that compares the vectors of the model.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompt: str = ""
    subfolder: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    include_prompt: bool = True
    similarity: Similarity = "cosine"


def sentence_settings(checkpoint: Checkpoint) -> SentenceSettings | None:
    """Read the settings of a directory in the sentence-transformers layout.

    Args:
        checkpoint: The directory or repository.

    Returns:
        The settings; None if there is no ``modules.json``.

    Raises:
        CheckpointFormatError: A file is not JSON of the expected form.
        ConfigError: The settings need something unsupported; names the file and the entry.
    """
    text = checkpoint.text(_MODULES)
    if text is None:
        return None
    where = f"{checkpoint.name}/{_MODULES}"
    modules = dict(_modules(text, where))
    if "Transformer" not in modules or "Pooling" not in modules:
        raise ConfigError(f"{where} needs a Transformer and a Pooling, and has {list(modules)}")
    subfolder = modules["Transformer"].strip("/")
    model_file, model = _of_model(checkpoint, subfolder)
    pooling_file = _inside(modules["Pooling"].strip("/"), "config.json")
    pooling = _object(checkpoint, pooling_file)
    others = _object(checkpoint, _PROMPTS)
    prompt = _prompt(others)
    if prompt and not pooling.get("include_prompt", True):
        raise ConfigError(
            f"{checkpoint.name}/{pooling_file}: include_prompt false is not supported with a "
            f"default prompt ({prompt!r})"
        )
    return SentenceSettings(
        pooling=_pooling(pooling, f"{checkpoint.name}/{pooling_file}"),
        normalize="Normalize" in modules,
        max_length=_max_length(model, f"{checkpoint.name}/{model_file}"),
        lower_case=bool(model.get("do_lower_case", False)),
        prompt=prompt,
        subfolder=subfolder,
        prompts=_prompts(others),
        include_prompt=bool(pooling.get("include_prompt", True)),
        similarity=_similarity(others),
    )


def settings_files(settings: SentenceSettings, width: int) -> dict[str, str]:
    """The files beside an encoder with which sentence-transformers opens its folder.

    Args:
        settings: The settings.
        width: The number of elements of a vector, H.

    Returns:
        The text of each file, by its name in the folder.

    Raises:
        ValueError: The pooling is ``"pooler"``, which such folders do not have.
    """
    if settings.pooling == "pooler":
        raise ValueError('the pooling "pooler" cannot be saved: use "mean", "cls" or "max"')
    steps = ["Transformer", "Pooling", *(["Normalize"] if settings.normalize else [])]
    places = ["", "1_Pooling", "2_Normalize"]
    prompts = dict(settings.prompts)
    name = next((name for name, text in prompts.items() if text == settings.prompt), "default")
    if settings.prompt:
        prompts[name] = settings.prompt
    files: dict[str, Any] = {
        _MODULES: [
            {
                "idx": number,
                "name": str(number),
                "path": places[number],
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(steps)
        ],
        _POOLING: {
            "word_embedding_dimension": width,
            **{flag: kind == settings.pooling for flag, kind in _FLAGS.items()},
            "include_prompt": settings.include_prompt,
        },
        **({"2_Normalize/config.json": {}} if settings.normalize else {}),
        _MODEL_FILES[0]: {
            "max_seq_length": settings.max_length,
            "do_lower_case": settings.lower_case,
        },
        _PROMPTS: {
            "prompts": prompts,
            "default_prompt_name": name if settings.prompt else None,
            "similarity_fn_name": settings.similarity,
        },
    }
    return {file: json.dumps(value, indent=2) + "\n" for file, value in files.items()}


def _modules(text: str, where: str) -> list[tuple[str, str]]:
    """Kind and folder of each step, in order."""
    steps = json_value(text, where)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise CheckpointFormatError(f"{where} must hold a list of objects, one per module")
    found = [
        (str(step.get("type", "")).rpartition(".")[2], str(step.get("path", ""))) for step in steps
    ]
    kinds = [kind for kind, _ in found]
    order = [kind for kind in ("Transformer", "Pooling", "Normalize") if kind in kinds]
    if kinds != order:
        raise ConfigError(
            f"{where} has the modules {', '.join(kinds)}; only Transformer, Pooling and then "
            "Normalize are supported"
        )
    return found


def _pooling(config: dict[str, Any], where: str) -> Pooling:
    named = config.get("pooling_mode")
    if named is None:
        named = [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
        # A file without any flag means the mean over the tokens.
        named = [_FLAGS.get(key, key) for key in named] or ["mean"]
    modes = [named] if isinstance(named, str) else named
    for pooling in POOLINGS[:3]:
        if modes == [pooling]:
            return pooling
    raise ConfigError(
        f"{where}: pooling {modes!r} is not supported; one of {', '.join(POOLINGS[:3])} is"
    )


def _of_model(checkpoint: Checkpoint, subfolder: str) -> tuple[str, dict[str, Any]]:
    """The file that says how texts are encoded: its name and its content."""
    names = [_inside(subfolder, name) for name in _MODEL_FILES]
    for name in names:
        if config := _object(checkpoint, name):
            return name, config
    return names[0], {}


def _max_length(config: dict[str, Any], where: str) -> int | None:
    length = config.get("max_seq_length")
    if length is None or (type(length) is int and length > 0):
        return length
    raise ConfigError(f"{where}: max_seq_length must be a positive number, got {length!r}")


def _prompt(config: dict[str, Any]) -> str:
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    if name is None:
        return ""
    if not isinstance(prompts, dict) or not isinstance(prompts.get(name), str):
        raise ConfigError(f"{_PROMPTS}: default_prompt_name {name!r} is not one of its prompts")
    return str(prompts[name])


def _prompts(config: dict[str, Any]) -> dict[str, str]:
    """The prompts by name; those that add nothing are there too."""
    prompts = config.get("prompts")
    if not isinstance(prompts, dict):
        return {}
    return {str(name): str(text or "") for name, text in prompts.items()}


def _similarity(config: dict[str, Any]) -> Similarity:
    named = config.get("similarity_fn_name") or "cosine"
    try:
        return _checked(named)
    except ValueError as error:
        raise ConfigError(f"{_PROMPTS}: similarity_fn_name: {error}") from None


def _object(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    text = checkpoint.text(name)
    return {} if text is None else json_object(text, f"{checkpoint.name}/{name}")


def _inside(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def companions_of(source: Checkpoint, names: Iterable[str] = COMPANIONS) -> dict[str, Path]:
    """The files with these names in a checkpoint, downloaded if they are on the Hub.

    Raises:
        HubError: A file has to be downloaded and cannot be.
    """
    found = {name: source.file(name) for name in names}
    return {name: path for name, path in found.items() if path is not None}


# --- Comparing vectors -------------------------------------------------------------------------


def similarity(kind: Similarity, first: Any, second: Any) -> Tensor:
    """Compare every vector of one set with every vector of another.

    Args:
        kind: The function.
        first: ``[N, H]`` or ``[H]``: a tensor, an array of numpy, or a list of either.
        second: ``[M, H]`` or ``[H]``.

    Returns:
        ``[N, M]``.

    Raises:
        ValueError: There is no such function.
    """
    return _ALL[_checked(kind)](_as_rows(first), _as_rows(second))


def _checked(kind: Any) -> Similarity:
    """The name of a function.

    Raises:
        ValueError: There is no such function.
    """
    if kind not in SIMILARITIES:
        raise ValueError(f"similarity {kind!r} is not one of {', '.join(SIMILARITIES)}")
    found: Similarity = kind
    return found


def _as_rows(vectors: Any) -> Tensor:
    if isinstance(vectors, Sequence) and vectors and not isinstance(vectors[0], float | int):
        vectors = torch.stack([torch.as_tensor(one) for one in vectors])
    rows = torch.as_tensor(vectors)
    return rows[None] if rows.dim() == 1 else rows


def _scaled(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=1)


_ALL: Mapping[Similarity, Compare] = {
    "cosine": lambda first, second: _scaled(first) @ _scaled(second).T,
    "dot": lambda first, second: first @ second.T,
    "euclidean": lambda first, second: -torch.cdist(first, second, p=2.0),
    "manhattan": lambda first, second: -torch.cdist(first, second, p=1.0),
}
