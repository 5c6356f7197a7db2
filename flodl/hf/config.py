"""The common part of all configurations: fields, checks, reading and writing."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from fdl.base.files import put
from flodl.hf.config_fields import (
    DEFAULT_WIDTH,
    LABEL_FIELDS,
    MOST_LABELS,
    MOST_LAYERS,
    WIDEST,
    FieldSpec,
    Labels,
    Refused,
    activation_name,
    amount,
    contradiction,
    default_labels,
    flag,
    labels_of,
    names_from_ids,
    names_from_names,
    one_of,
    parsed,
    put_labels,
    rate,
    refusal,
    text,
    texts,
    whole,
)
from flodl.hf.errors import ConfigError

if TYPE_CHECKING:
    from flodl.hf.head_kind import HeadKind

_USUAL: Final = {
    "output_hidden_states": False,
    "output_attentions": False,
    "return_dict": True,
    "use_return_dict": True,
    "use_cache": True,
    "is_encoder_decoder": False,
    "chunk_size_feed_forward": 0,
}
"""Fields that every configuration of transformers has, with their values if none are set."""

_ELSEWHERE: Final = {
    "to_json_file": "save_pretrained(folder) writes config.json, to_json_string() its text",
    "to_diff_dict": "source has the fields of the file, to_dict() all fields",
    "update_from_string": "call update({name: value})",
    "get_text_config": "this is the configuration of the model",
    "push_to_hub": "write a folder with save_pretrained, then huggingface_hub.upload_folder",
}
"""Names of transformers that have another name here -> what to write instead."""

_OTHER_MODELS: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "position_embedding_type": ((None, "absolute"), "'absolute'"),
    "is_decoder": ((None, False), "false; decoders are not supported"),
    "add_cross_attention": ((None, False), "false; decoders are not supported"),
    "pruned_heads": ((None, {}, []), "empty: heads cannot be pruned"),
    "quantization_config": ((None,), "absent; use a checkpoint that is not quantized"),
}
"""Fields that make another model -> the values that do not, and how messages say that."""

SINGLE_LABEL: Final = "single_label_classification"
PROBLEM_TYPES: Final = ("regression", SINGLE_LABEL, "multi_label_classification")


class EncoderConfig:
    """The sizes and constants of an encoder of any family.

    Made from keywords, or read with ``from_pretrained``. Fields can be set. All fields of a file
    are kept, and any other may be added: ``save_pretrained`` writes them back, also those that
    flodl does not use. Attributes have one name in all families; that of the file works too
    (DistilBERT: ``hidden_size`` is ``dim``). Two configurations are equal if all their attributes
    are equal; fields that flodl does not know do not count.

    Attributes:
        vocab_size: Rows of the word table, V.
        hidden_size: Width of a layer, H.
        num_hidden_layers: Number of layers.
        num_attention_heads: Attention heads of a layer; divides ``hidden_size``.
        intermediate_size: Width between the two projections of a layer.
        max_position_embeddings: Rows of the position table.
        hidden_act: Name of the activation, one of ``flodl.hf.layers.activations.ACTIVATIONS``.
        hidden_dropout_prob: Dropout after embeddings and projections.
        attention_probs_dropout_prob: Dropout of the attention weights.
        type_vocab_size: Rows of the segment table; 0 for no table.
        layer_norm_eps: Added to the variance by every LayerNorm.
        pad_token_id: Row of the word table that stays zero; None for no such row.
        initializer_range: Standard deviation of newly drawn weights.
        tie_word_embeddings: Whether the masked-language head decodes with the word table.
        problem_type: ``regression``, ``single_label_classification``,
            ``multi_label_classification``, or None to decide by the labels.
        dtype: The type of the weights, as the file says (``torch_dtype`` in older files).
        architectures: Model classes the checkpoint was saved from, usually at most one.

    Raises:
        ConfigError: No model can be built from a value; names the field and the allowed values.
    """

    model_type: ClassVar[str]
    """The family, as written in ``config.json``."""
    prefix: ClassVar[str]
    """The prefix of the names of the encoder's weights in a model with a head."""
    class_prefix: ClassVar[str]
    """The prefix of the names of the family's model classes in ``architectures``."""

    vocab_size: int = whole()
    hidden_size: int = whole(most=WIDEST)
    num_hidden_layers: int = whole(most=MOST_LAYERS)
    num_attention_heads: int = whole()
    intermediate_size: int = whole(most=WIDEST)
    max_position_embeddings: int = whole()
    hidden_act: str = activation_name(default="gelu")
    hidden_dropout_prob: float = rate(default=0.1)
    attention_probs_dropout_prob: float = rate(default=0.1)
    type_vocab_size: int = whole(default=2)
    layer_norm_eps: float = amount(default=1e-12)
    pad_token_id: int | None = whole(default=0, least=0, nullable=True)
    initializer_range: float = amount(default=0.02)
    tie_word_embeddings: bool = flag(default=True)
    problem_type: str | None = one_of(PROBLEM_TYPES, default=None, nullable=True)
    dtype: str | None = text(default=None, aliases=("torch_dtype",))
    architectures: tuple[str, ...] = parsed(texts, "a list of class names, or null", default=None)
    _number: int | None = whole(default=None, most=MOST_LABELS, nullable=True, key="num_labels")
    _names: tuple[str, ...] | None = parsed(
        names_from_ids,
        "an object with contiguous ids 0 to N-1 as keys and texts as values, or null",
        default=None,
        key="id2label",
    )

    _specs: ClassVar[Mapping[str, FieldSpec]]
    _spellings: ClassVar[Mapping[str, str]]
    _data: dict[str, Any]
    _values: dict[str, Any]
    _changes: int

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._declare()

    @classmethod
    def _declare(cls) -> None:
        """Collect the declared fields, and the names that they have in a file."""
        names = dict.fromkeys(name for one in reversed(cls.__mro__) for name in vars(one))
        found = {name: getattr(cls, name, None) for name in names}
        cls._specs = {name: one for name, one in found.items() if isinstance(one, FieldSpec)}
        cls._spellings = {
            spelled: name
            for name, spec in cls._specs.items()
            for spelled in (spec.key, *spec.aliases)
            if spelled not in (*cls._specs, *LABEL_FIELDS)
        }

    def __init__(self, **fields: Any) -> None:
        self._take({"model_type": self.model_type}, type(self).__name__, fields)

    @classmethod
    def from_json_str(
        cls, text: str, *, origin: str = "config.json", fields: Mapping[str, Any] | None = None
    ) -> Self:
        """Read the text of a ``config.json``.

        Args:
            text: A JSON object. ``model_type`` may be absent, because this class gives it.
            origin: The name of the text in messages.
            fields: Fields to set in it.

        Raises:
            ConfigError: The text is not a JSON object, it is of another family, or a field has an
                impossible value.
        """
        return cls._from_mapping(parse_object(text, origin), origin, fields)

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **fields: Any) -> Self:
        """Make the configuration of a JSON object, with some fields set.

        Raises:
            ConfigError: It is of another family, or a field has an impossible value.
        """
        return cls._from_mapping(copy.deepcopy(dict(config_dict)), cls.__name__, fields)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **options: Any
    ) -> Self:
        """Read the configuration from a directory or a repository, without weights.

        Args:
            pretrained_model_name_or_path: A directory with a ``config.json``, or the name of a
                repository on the Hub.
            options: ``revision``, ``token``, ``cache_dir``, ``local_files_only`` and ``subfolder``
                say how to reach it. Everything else is a field to set, such as ``num_labels``.

        Raises:
            ConfigError: It is of another family, or a field has an impossible value.
            FileNotFoundError: The directory does not exist, or it has no ``config.json``.
            HubError: The repository or its ``config.json`` cannot be downloaded.
        """
        data, origin, fields = config_of(pretrained_model_name_or_path, options)
        return cls._from_mapping(data, origin, fields)

    @classmethod
    def _from_mapping(
        cls, data: dict[str, Any], origin: str, fields: Mapping[str, Any] | None = None
    ) -> Self:
        if cls is EncoderConfig:
            raise TypeError("EncoderConfig is of no family: use AutoConfig.from_pretrained(source)")
        named = data.get("model_type", cls.model_type)
        if named != cls.model_type:
            raise ConfigError(
                f"{origin}: 'model_type' is {named!r}, and {cls.__name__} reads "
                f"{cls.model_type!r}; AutoConfig reads every family"
            )
        config = object.__new__(cls)
        config._take(data | {"model_type": cls.model_type}, origin, fields or {})
        return config

    # --- Fields ----------------------------------------------------------------------------

    def _take(self, data: dict[str, Any], origin: str, fields: Mapping[str, Any]) -> None:
        """Become the configuration of a JSON object in which some fields are set."""
        data = self._with(data, fields)
        for key, (harmless, allowed) in _OTHER_MODELS.items():
            if data.get(key) not in harmless:
                raise refusal(origin, key, data[key], allowed)
        self.__dict__.update(_data=data, _values=self._read(data, origin), _changes=0)
        self._check(origin)

    def update(self, config_dict: Mapping[str, Any]) -> None:
        """Set several fields, all of them or none.

        Each must have a possible value. Whether they fit together is asked when a model is built.

        Raises:
            ConfigError: A field has an impossible value.
        """
        data = self._with(copy.deepcopy(self._data), config_dict)
        values = self._read(data, type(self).__name__)
        self.__dict__.update(_data=data, _values=values, _changes=self._changes + 1)

    def _with(self, data: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object with these fields written into it; class names in both directions."""
        if not fields.keys().isdisjoint(LABEL_FIELDS):
            put_labels(data, labels_of(fields, data))
        for given, value in fields.items():
            name = self._spellings.get(given, given)
            if name == "_names":
                put_labels(data, value)
            elif name in self._specs:
                self._specs[name].put(data, value)
            elif name not in LABEL_FIELDS:
                data[name] = value
        return data

    def _read(self, data: Mapping[str, Any], origin: str) -> dict[str, Any]:
        """The values of all attributes; no other code makes them."""
        values: dict[str, Any] = {}
        for name, spec in self._specs.items():  # a field comes after the one that it inherits
            value = spec.value_in(data, origin)
            inherited = value is None and spec.inherits is not None
            values[name] = values[spec.inherits] if inherited and spec.inherits else value
        if values["_names"] is None:
            values["_names"] = _inverted(data, origin)
        return values

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), FieldSpec | property):
            object.__setattr__(self, name, value)
        elif name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r} to set")
        else:
            self.update({name: value})

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and "_data" in self.__dict__:
            if name in self._spellings:
                return self._values[self._spellings[name]]
            if name in self._data:
                return self._data[name]
            if name in _USUAL:
                return _USUAL[name]
        remedy = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"{type(self).__name__} has no field {name!r}{remedy}")

    @classmethod
    def has_field(cls, name: str) -> bool:
        """Whether models of the family have this field."""
        return any(name in names for names in (cls._specs, cls._spellings, LABEL_FIELDS, _USUAL))

    def replace(self, **fields: Any) -> Self:
        """A configuration with other values; this one stays.

        Some values in the file default to another field, such as a classifier's dropout that is
        null. These still follow that field. New ``id2label`` also sets ``label2id`` and
        ``num_labels``.

        Raises:
            TypeError: A name is not a field of this family.
            ConfigError: A value is impossible.
        """
        unknown = sorted(set(fields) - set(self._specs) - set(LABEL_FIELDS))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(unknown)} to set")
        return self.from_dict(self._data, **fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EncoderConfig) or type(other) is not type(self):
            return NotImplemented
        return self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # fields can be set

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.to_json_string()}"

    def class_name(self, kind: HeadKind) -> str:
        """The class of the family with a head: ``BertForMaskedLM``, ``BertModel``."""
        return f"{self.class_prefix}{kind.suffix}"

    # --- As JSON ---------------------------------------------------------------------------

    @property
    def source(self) -> dict[str, Any]:
        """The JSON object of the file, with its unknown fields; a copy that may be changed."""
        return copy.deepcopy(self._data)

    def to_dict(self) -> dict[str, Any]:
        """All fields under the names of the file, also those that the file leaves out; a copy."""
        declared = {
            spec.key: spec.write(self._values[name])
            for name, spec in self._specs.items()
            if not name.startswith("_")
        }
        labels = {"id2label": self.id2label, "label2id": self.label2id}
        return copy.deepcopy(declared | self._data | labels)

    def to_json_string(self, use_diff: bool = True) -> str:
        """The text of a ``config.json``: sorted, indented by two, with a newline at the end.

        Args:
            use_diff: False also writes fields that have the default of their family.
        """
        return json_text(self._data if use_diff else self.to_dict())

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Write ``config.json`` into a directory, which is created if needed.

        Raises:
            OSError: The system refused.
        """
        put(Path(save_directory, "config.json"), self.to_json_string().encode())

    # --- Labels ----------------------------------------------------------------------------

    @property
    def num_labels(self) -> int:
        """The number of classes: two, if the file says nothing."""
        return len(self.id2label)

    @num_labels.setter
    def num_labels(self, number: int) -> None:
        self.update({"num_labels": number})

    @property
    def id2label(self) -> dict[int, str]:
        """The names of the classes; a copy. Set it to change the classes."""
        names = self._names or default_labels(self._number or DEFAULT_WIDTH)
        return dict(enumerate(names))

    @id2label.setter
    def id2label(self, names: Labels | None) -> None:
        self.update({"id2label": names})

    @property
    def label2id(self) -> dict[str, int]:
        """The number of each class by its name; a copy."""
        return {name: number for number, name in self.id2label.items()}

    @label2id.setter
    def label2id(self, numbers: Mapping[str, int] | None) -> None:
        self.update({"label2id": numbers})

    def labels_for(self, checkpoint_rows: int | None = None) -> tuple[str, ...]:
        """The names of a head's classes, one for each of its outputs.

        The number of classes is the first of these that is known: the names in the file,
        ``num_labels`` in the file, ``checkpoint_rows``, two. If names and number in the file
        disagree, the one that agrees with ``checkpoint_rows`` is used.

        Args:
            checkpoint_rows: Rows of the classifier in the checkpoint; None if it has none.

        Raises:
            ConfigError: The values contradict each other and the checkpoint does not decide, or
                there is one class for a problem type that needs several.
        """
        written, known = self._number, len(self._names or ())
        width = known or written or checkpoint_rows or DEFAULT_WIDTH
        if known and written not in (None, known):
            if checkpoint_rows not in (written, known):
                raise contradiction(written, known, checkpoint_rows)
            width = checkpoint_rows or known
        names = self._names if self._names and known == width else default_labels(width)
        if len(names) == 1 and self.problem_type == SINGLE_LABEL:
            raise _one_class("config.json")
        return names

    # --- Checks ----------------------------------------------------------------------------

    def _check(self, origin: str) -> None:
        """Check that the fields fit together.

        Args:
            origin: The name of the configuration in messages.

        Raises:
            ConfigError: No model can be built.
        """
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"{origin}: {self._spelled('hidden_size')} is {self.hidden_size}, which "
                f"{self._spelled('num_attention_heads')} {self.num_attention_heads} does not divide"
            )
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise refusal(
                origin,
                "pad_token_id",
                self.pad_token_id,
                f"below 'vocab_size', which is {self.vocab_size}",
            )
        widths = {self._number, self._names and len(self._names)} - {None}
        if widths == {1} and self.problem_type == SINGLE_LABEL:
            raise _one_class(origin)

    def _spelled(self, name: str) -> str:
        return repr(self._specs[name].key)


EncoderConfig._declare()


def config_of(
    src: str | os.PathLike[str], options: Mapping[str, Any]
) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The JSON object of a directory or repository, its name, and the options that are fields."""
    from flodl.hf.hub import locate
    from flodl.hf.source import CONFIG, reach

    access, others = reach(options)
    checkpoint = locate(src, access)
    origin = f"{checkpoint.name}/{CONFIG}"
    try:
        text = checkpoint.require(CONFIG).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{origin}: not valid JSON: {error}") from None
    return parse_object(text, origin), origin, others


def _inverted(data: Mapping[str, Any], origin: str) -> tuple[str, ...] | None:
    try:
        return names_from_names(data.get("label2id"))
    except Refused as refused:
        allowed = str(refused) or "an object with texts as keys and ids 0 to N-1 as values, or null"
        raise refusal(origin, "label2id", data["label2id"], allowed) from None


def _one_class(origin: str) -> ConfigError:
    return ConfigError(
        f"{origin}: 'problem_type' is {SINGLE_LABEL!r} and there is one label; one output is "
        "for 'regression' or 'multi_label_classification'"
    )


_DEEPEST: Final = 100  # levels; far below the depth that Python can still write
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def parse_object(text: str, origin: str) -> dict[str, Any]:
    """The JSON object in a text.

    Raises:
        ConfigError: The text is not JSON, or is JSON of another kind; names the place.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{origin}: line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}"
        ) from None
    except ValueError as error:  # for instance a number with thousands of digits
        raise ConfigError(f"{origin}: JSON that cannot be used: {error}") from None
    except RecursionError:
        raise _too_deep(origin) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{origin}: a JSON object is needed, this is {type(data).__name__}")
    if text.count("{") + text.count("[") > _DEEPEST and _is_deep(data):
        raise _too_deep(origin)
    return data


def json_text(data: Mapping[str, Any]) -> str:
    """The text of a ``config.json``: keys sorted (ids by number), two spaces, final newline."""
    labels = data.get("id2label")
    # Up to ten, the texts of numbers have the order of the numbers.
    if (
        isinstance(labels, Mapping)
        and len(labels) > 10
        and all(_NUMBER.fullmatch(key) for key in labels)
    ):
        data = {**data, "id2label": {int(key): name for key, name in labels.items()}}
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _is_deep(item: Any, levels: int = _DEEPEST) -> bool:
    """Whether a value is nested so deep that Python could not write it."""
    children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return not levels or any(_is_deep(child, levels - 1) for child in children)


def _too_deep(origin: str) -> ConfigError:
    return ConfigError(
        f"{origin}: nested more than {_DEEPEST} levels deep, which no config.json is"
    )
