"""The common part of all configurations: fields, checks, reading and writing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Self

from flodl.hf.configs.fields import (
    MOST_LABELS,
    MOST_LAYERS,
    WIDEST,
    FieldSpec,
    Refused,
    activation_name,
    amount,
    config_class,
    constant,
    constants_of,
    flag,
    one_of,
    parsed,
    rate,
    refusal,
    specs_of,
    text,
    texts,
    whole,
)
from flodl.hf.configs.labels import (
    ALLOWED,
    Labels,
    checked_labels,
    names_from_ids,
    names_from_names,
    put_labels,
    resolve_labels,
)
from flodl.hf.errors import ConfigError

SINGLE_LABEL: Final = "single_label_classification"
PROBLEM_TYPES: Final = ("regression", SINGLE_LABEL, "multi_label_classification")


def _architectures(value: Any) -> tuple[str, ...]:
    return () if value is None else texts(value)


@config_class
class EncoderConfig:
    """The sizes and constants of an encoder of any family.

    Made from keywords, or from a ``config.json`` with ``from_json_str``. All fields
    of a file are kept: ``to_json_str`` writes them back, also those that flodl does not use.
    Attributes have one name in all families, even if the file uses another one (DistilBERT:
    ``hidden_size`` is ``dim``). Two configurations are equal if all their attributes are equal;
    unknown fields of the file do not count.

    Attributes:
        vocab_size: Rows of the word table, V.
        hidden_size: Width of a layer, H.
        num_hidden_layers: Number of layers.
        num_attention_heads: Attention heads of a layer; divides ``hidden_size``.
        intermediate_size: Width between the two projections of a layer.
        max_position_embeddings: Rows of the position table.
        hidden_act: Name of the activation, one of ``flodl.hf.activations.NAMES``.
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
        num_labels: Number of classes, if the file says it.
        id2label: Names of the classes, if the file says them (also as ``label2id``).

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
    architectures: tuple[str, ...] = parsed(
        _architectures, "a list of class names, or null", default=None
    )
    num_labels: int | None = whole(default=None, most=MOST_LABELS, nullable=True)
    id2label: tuple[str, ...] | None = parsed(names_from_ids, ALLOWED, default=None)
    _json: str = constant("", shown=False)

    def __post_init__(self) -> None:
        specs = specs_of(type(self))
        given = {name: getattr(self, name) for name in specs}
        # A field whose default is None may be absent; the meaning is the same.
        needed = {
            name: value
            for name, value in given.items()
            if value is not None or specs[name].default is not None
        }
        self._fill(_with_fields({}, specs, needed), type(self).__name__)

    @classmethod
    def from_json_str(cls, text: str, *, origin: str = "config.json") -> Self:
        """Read the text of a ``config.json``.

        Args:
            text: A JSON object. ``model_type`` may be absent, because this class gives it.
            origin: The name of the text in messages.

        Raises:
            ConfigError: The text is not a JSON object, it is of another family, or a field has an
                impossible value.
        """
        return cls._from_mapping(parse_object(text, origin), origin)

    @classmethod
    def _from_mapping(cls, data: dict[str, Any], origin: str) -> Self:
        named = data.get("model_type", cls.model_type)
        if named != cls.model_type:
            raise ConfigError(
                f"{origin}: 'model_type' is {named!r}, and {cls.__name__} reads "
                f"{cls.model_type!r}; AutoConfig reads every family"
            )
        config = object.__new__(cls)
        config._fill(data, origin)
        return config

    @property
    def source(self) -> dict[str, Any]:
        """The whole JSON object with all unknown fields; a copy that may be changed."""
        data: dict[str, Any] = json.loads(self._json)
        return data

    @property
    def base_class_name(self) -> str:
        """The model class without a head: ``BertModel``, ``XLMRobertaModel``."""
        return f"{self.class_prefix}Model"

    @property
    def label2id(self) -> dict[str, int] | None:
        """The number of each class by its name; None if the file says no names."""
        names = self.id2label
        return None if names is None else {name: number for number, name in enumerate(names)}

    def to_json_str(self) -> str:
        """The text of a ``config.json``: sorted, indented by two, with a newline at the end."""
        return json_text(self.source)

    def replace(self, **fields: Any) -> Self:
        """The configuration with other values; ``to_json_str`` keeps all other fields.

        Some values in the file default to another field, such as a classifier's dropout that is
        null. These still follow that field. New ``id2label`` also sets ``label2id`` and
        ``num_labels``.

        Raises:
            TypeError: A name is not a field of this family.
            ConfigError: A value is impossible.
        """
        specs = specs_of(type(self))
        unknown = sorted(set(fields) - set(specs))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(unknown)} to set")
        return self._from_mapping(_with_fields(self.source, specs, fields), type(self).__name__)

    def labels_for(
        self,
        num_labels: int | None = None,
        id2label: Labels | None = None,
        checkpoint_rows: int | None = None,
    ) -> tuple[str, ...]:
        """The names of a head's classes, one for each of its outputs.

        The number of classes is the first of these that is known: the arguments, the names in the
        file, ``num_labels`` in the file, ``checkpoint_rows``, two. If names and number in the file
        disagree, the one that agrees with ``checkpoint_rows`` is used.

        Args:
            num_labels: The caller's number.
            id2label: The caller's names, in order or by id.
            checkpoint_rows: Rows of the classifier in the checkpoint; None if it has none.

        Raises:
            ConfigError: The values contradict each other and the checkpoint does not decide, a
                number is below 1, or there is one class for a problem type that needs several.
        """
        names = resolve_labels(
            num_labels, id2label, self.num_labels, self.id2label, checkpoint_rows
        )
        if len(names) == 1 and self.problem_type == SINGLE_LABEL:
            raise _one_class("config.json")
        return names

    def _fill(self, data: dict[str, Any], origin: str) -> None:
        """Set all attributes from the JSON object; no other code sets them."""
        cls = type(self)
        _refuse_other_models(data, origin)
        for name, value in constants_of(cls).items():
            self._set(name, value)
        for name, spec in specs_of(cls).items():
            self._set(name, spec.value_in(data, origin))
        for name, spec in specs_of(cls).items():
            if spec.inherits is not None and getattr(self, name) is None:
                self._set(name, getattr(self, spec.inherits))
        if self.id2label is None:
            self._set("id2label", _inverted(data, origin))
        self._set("_json", json.dumps(data | {"model_type": cls.model_type}))
        self._check_common(origin)
        self._check(data, origin)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_common(self, origin: str) -> None:
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
        widths = {self.num_labels, self.id2label and len(self.id2label)} - {None}
        if widths == {1} and self.problem_type == SINGLE_LABEL:
            raise _one_class(origin)

    def _check(self, data: Mapping[str, Any], origin: str) -> None:
        """Check what is special to the family; ``data`` is the whole JSON object."""

    def _spelled(self, name: str) -> str:
        return repr(specs_of(type(self))[name].key)


def _with_fields(
    data: dict[str, Any], specs: Mapping[str, FieldSpec], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON object with these attributes written into it; class names in both directions."""
    if "id2label" in values:
        names = values["id2label"]
        put_labels(data, None if names is None else checked_labels(names))
    for name, value in values.items():
        if name != "id2label":
            specs[name].put(data, value)
    return data


def _refuse_other_models(data: Mapping[str, Any], origin: str) -> None:
    """Refuse fields that change the model in a way that flodl does not have."""
    positions = data.get("position_embedding_type")
    if positions not in (None, "absolute"):
        raise refusal(origin, "position_embedding_type", positions, "'absolute'")
    for key in ("is_decoder", "add_cross_attention"):
        if data.get(key) not in (None, False):
            raise refusal(origin, key, data[key], "false; decoders are not supported")
    if data.get("pruned_heads") not in (None, {}, []):
        raise refusal(origin, "pruned_heads", data["pruned_heads"], "empty: heads cannot be pruned")
    if data.get("quantization_config") is not None:
        raise refusal(
            origin,
            "quantization_config",
            data["quantization_config"],
            "absent; use a checkpoint that is not quantized",
        )


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
    if _is_deep(data):
        raise _too_deep(origin)
    return data


def json_text(data: Mapping[str, Any]) -> str:
    """The text of a ``config.json``: keys sorted (ids by number), two spaces, final newline."""
    labels = data.get("id2label")
    if isinstance(labels, Mapping) and all(_NUMBER.fullmatch(key) for key in labels):
        data = {**data, "id2label": {int(key): name for key, name in labels.items()}}
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _is_deep(data: Any) -> bool:
    """Whether the value is nested so deep that Python could not write it."""
    level = [data]
    for _ in range(_DEEPEST):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _too_deep(origin: str) -> ConfigError:
    return ConfigError(
        f"{origin}: nested more than {_DEEPEST} levels deep, which no config.json is"
    )
