"""What all models have in common: a graph that behaves like a model of ``transformers``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from flodl.graph import Graph
from flodl.hf.build import build
from flodl.hf.families import AutoConfig, EncoderConfig, family_of
from flodl.hf.head_kind import HeadKind
from flodl.hf.layers.attention import check_attention
from flodl.hf.layers.encoder import RecomputedLayer
from flodl.hf.model_call import Arguments, ModelOutput, word_table_of
from flodl.hf.opening import settled, with_head
from flodl.hf.weights.fill import float_type

if TYPE_CHECKING:
    from flodl.hf.tokenizer import PreTrainedTokenizerFast

Out = TypeVar("Out", bound=ModelOutput)

Inputs: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""The ids, the mask, segments, positions and vectors of a call."""

_DECODER = "an encoder reads all tokens at once, without a decoder and its cache"
_REGISTRIES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")

_ELSEWHERE: Mapping[str, str] = {
    "push_to_hub": (
        "write a folder with save_pretrained(folder), then upload it with "
        "huggingface_hub.upload_folder(repo_id=..., folder_path=folder)"
    ),
    "generate": "an encoder writes no text; a masked-language model fills gaps by fill_mask(text)",
    "tie_weights": "parameters that belong together are shared already",
    "init_weights": "from_config(config) makes a model with newly drawn values",
    "prune_heads": "heads cannot be pruned; flodl.hf.drop_layers(model.graph, layers) drops layers",
    "enable_input_require_grads": (
        "inputs need no gradients here: gradient_checkpointing_enable() works without"
    ),
    "resize_position_embeddings": (
        "the number of positions is fixed: give a larger max_position_embeddings to from_config, "
        "which draws new values"
    ),
    "set_output_embeddings": "set the weight of get_output_embeddings() instead",
    "quantize": "open the model with dtype='bfloat16'",
    "to_bettertransformer": "attention is fused already",
}
"""Names of ``transformers`` that have another name here -> what to write instead."""

_NO_ARGUMENT: Mapping[str, str] = {
    "head_mask": "attention heads cannot be masked",
    "encoder_hidden_states": _DECODER,
    "encoder_attention_mask": _DECODER,
    "past_key_values": _DECODER,
    "cache_position": _DECODER,
    "labels": "open the model with a head, such as AutoModelForSequenceClassification",
}
"""Arguments of calls in ``transformers`` that mean nothing here -> why, or what to do."""


CLASSES: dict[tuple[str, HeadKind], type[PretrainedModel]] = {}
"""The class for each model type and head."""


class PretrainedModel(nn.Module):
    """A model as a ``torch.nn.Module``: its parameters have the names of the checkpoint.

    A call returns a :class:`~flodl.hf.model_call.ModelOutput`. :attr:`graph` is the same model as a
    graph, which returns a tensor. Both share all parts, so either may be trained, moved or saved.
    Public attributes of the graph, such as ``freeze`` and ``save_checkpoint``, can also be reached
    through the model.

    Args:
        config: Its configuration.
        graph: The graph; None to build one with newly drawn values.

    Raises:
        TypeError: ``config`` is not a configuration of the family.
    """

    config_class: ClassVar[type[EncoderConfig]]
    kind: ClassVar[HeadKind]
    main_input_name: ClassVar[str] = "input_ids"
    accepts_loss_kwargs: ClassVar[bool] = False
    """Says to ``transformers.Trainer`` that a loss is the mean of one batch."""

    _graph: Graph
    _config: EncoderConfig
    _described: tuple[str | None, int]

    def __init_subclass__(cls, config: type[EncoderConfig] | None = None) -> None:
        """Note the class of a family; ``config=`` in the class line names its configuration."""
        super().__init_subclass__()
        if config is not None:
            cls.config_class = config
            CLASSES.setdefault((config.model_type, cls.kind), cls)

    def __init__(self, config: EncoderConfig, graph: Graph | None = None) -> None:
        family = type(self).config_class
        if not isinstance(config, family):
            name = type(self).__name__
            raise TypeError(
                f"{name} is made of a {family.__name__}, got {type(config).__name__}: use "
                f"{name}.from_pretrained(source) for a checkpoint"
            )
        super().__init__()
        if graph is None:
            config = with_head(config, self.kind, {})
            graph = build(config, self.kind, device="cpu")
        if graph.source_config is None:
            graph.set_source_config(config.to_json_string())
        # The registries of the graph, not the graph as a child: names of parameters then have no
        # further segment, and a part that is replaced is replaced in both.
        for name in _REGISTRIES:
            self.__dict__[name] = graph.__dict__[name]
        told = (graph.source_config, config._changes)
        self.__dict__.update(_graph=graph, _config=config, _described=told)

    @classmethod
    def from_config(
        cls,
        config: EncoderConfig,
        *,
        num_labels: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | str | None = None,
        **options: Any,
    ) -> Self:
        """Build a model with newly drawn values; without a head, it has a pooler if its family has.

        Args:
            config: Of this family.
            num_labels: Number of classes; by default that of the configuration, else two. If the
                configuration names as many, the names stay.
            device: Where the model is made.
            dtype: The type of its values; float32 if not given.
            **options: ``torch_dtype`` and ``attn_implementation``, as for ``from_pretrained``.

        Raises:
            ConfigError: ``num_labels`` is not a positive number.
            TypeError: There is no such argument.
            ValueError: ``dtype`` is not a type of floating-point numbers.
        """
        asked = settled({"dtype": dtype, **options}, "from_config")[1]
        wanted = asked.pop("dtype", None)
        if asked:
            raise TypeError(
                f"from_config() takes no argument {next(iter(asked))!r}: set it in the "
                "configuration first, as in config.hidden_dropout_prob = 0.0"
            )
        if num_labels is not None and cls.kind.labelled:
            config = config.replace(num_labels=num_labels)
        config = with_head(config, cls.kind, {})
        model = cls(config, build(config, cls.kind, device=device))
        return model if wanted is None else model.to(float_type(wanted))

    # --- Parts -----------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The model as a graph, a ``torch.nn.Module`` that returns a tensor."""
        self._tell_graph()
        return self._graph

    @property
    def config(self) -> EncoderConfig:
        """The configuration of the model, with changes made by surgery; fields may be set."""
        text, (described, _) = self._graph.source_config, self._described
        if text is not None and text != described:
            changed = _fields_set_since(described, self._config)
            self.__dict__["_config"] = AutoConfig.from_json_str(text)
            self.__dict__["_described"] = (text, 0)
            self._config.update(changed)
        return self._config

    def _tell_graph(self) -> None:
        """Write fields that were set into the graph, which saves its configuration as a text."""
        config = self.config
        if config._changes != self._described[1]:
            self._graph.set_source_config(config.to_json_string())
            self.__dict__["_described"] = (self._graph.source_config, config._changes)

    @property
    def base_model_prefix(self) -> str:
        """The name of the encoder in a model with a head."""
        return self.config.prefix

    @property
    def base_model(self) -> PretrainedModel:
        """The encoder of a model with a head; a model without a head itself."""
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            graph = self.__dict__.get("_graph")
        if graph is not None and not name.startswith("_"):
            self._tell_graph()
            with contextlib.suppress(AttributeError):
                return getattr(graph, name)
        remedy = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{remedy}")

    @property
    def num_labels(self) -> int:
        """The number of classes in the configuration."""
        return self.config.num_labels

    # --- As a module -----------------------------------------------------------------------

    @property
    def training(self) -> bool:
        """Whether the model is in training mode."""
        graph = self.__dict__.get("_graph")
        return graph is not None and graph.training

    @training.setter
    def training(self, mode: bool) -> None:
        graph = self.__dict__.get("_graph")  # None while torch makes the module
        if graph is not None:
            graph.training = mode

    def train(self, mode: bool = True) -> Self:
        """Set training mode, or evaluation mode for False."""
        self._graph.train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._graph._apply(fn, recurse)
        return self

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the model in place; see :meth:`flodl.graph.Graph.compile`."""
        self._graph.compile(*args, **options)

    @property
    def device(self) -> torch.device:
        """The device of the first parameter."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the first floating-point parameter."""
        return next(one.dtype for one in self.parameters() if one.is_floating_point())

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Count the elements of all parameters; shared parameters count once.

        Args:
            only_trainable: Leave out frozen parameters.
            exclude_embeddings: Leave out the tables of ``nn.Embedding``.
        """
        tables = {
            id(module.weight)
            for module in (self.modules() if exclude_embeddings else ())
            if isinstance(module, nn.Embedding)
        }
        return sum(
            one.numel()
            for one in self.parameters()
            if (one.requires_grad or not only_trainable) and id(one) not in tables
        )

    def set_attn_implementation(self, attn_implementation: str) -> None:
        """Change nothing: ``"sdpa"`` and ``"eager"`` both mean the one attention of flodl.

        Raises:
            ValueError: It is another one.
        """
        check_attention(attn_implementation)

    def _arguments(
        self,
        inputs: Inputs,
        *,
        hidden_states: bool | None,
        attentions: bool | None,
        others: Mapping[str, Any],
        padding: bool = False,
    ) -> Arguments:
        """The arguments of a call; what it leaves open, the configuration says."""
        for name, value in others.items():
            if value is not None and value is not False and name != "use_cache":
                reason = _NO_ARGUMENT.get(name, "see help(model.forward) for those it takes")
                raise TypeError(f"{type(self).__name__} takes no argument {name!r}: {reason}")
        return Arguments(
            *inputs,
            hidden_states=self._settled("output_hidden_states", hidden_states),
            attentions=self._settled("output_attentions", attentions),
            padding=padding,
        )

    def _settled(self, name: str, asked: bool | None) -> bool:
        return bool(getattr(self._config, name) if asked is None else asked)

    def _returned(self, output: Out, return_dict: bool | None) -> Out | tuple[Any, ...]:
        """The outputs of a call, as a tuple if that is asked for."""
        return output if self._settled("return_dict", return_dict) else output.to_tuple()

    # --- Words -----------------------------------------------------------------------------

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of words."""
        return word_table_of(self._graph, self.config)

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another table of words in its place; a decoder that shared it keeps the old one.

        Raises:
            ValueError: The new table has other sizes.
        """
        old, config = self.get_input_embeddings(), self.config
        if value.weight.shape != old.weight.shape:
            raise ValueError(
                f"the table of words is {list(old.weight.shape)}, not {list(value.weight.shape)}: "
                "call resize_token_embeddings first"
            )
        encoder = self._graph.tree_children().get(config.prefix, self._graph)
        parent, _, name = family_of(config).table.rpartition(".")
        setattr(encoder.get_submodule(parent), name, value)

    def get_output_embeddings(self) -> nn.Linear | None:
        """The decoder of a masked-language head; None for other models."""
        modules: dict[str, Any] = dict(self._graph.named_modules())
        return next((modules[n] for n in family_of(self.config).decoders if n in modules), None)

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = False,
    ) -> nn.Embedding:
        """Change the number of words; new rows are drawn.

        Args:
            new_num_tokens: The new number of rows; None for the present one.
            pad_to_multiple_of: The number is raised to a multiple of this.
            mean_resizing: Only False is supported: new rows come from Normal(0,
                ``initializer_range``).

        Returns:
            The table of words.

        Raises:
            ValueError: It is not a positive number, or ``mean_resizing`` is True.
            ConfigError: The padding token would have no row.
        """
        if mean_resizing:
            raise ValueError(
                "mean_resizing=True: new rows are drawn; write other values into them afterwards, "
                "under torch.no_grad()"
            )
        size = new_num_tokens
        if pad_to_multiple_of is not None:
            size = self.config.vocab_size if size is None else size
            size = -(-size // pad_to_multiple_of) * pad_to_multiple_of
        if size is not None:
            from flodl.hf.surgery import resize_vocab

            resize_vocab(self._graph, size)
        return self.get_input_embeddings()

    # --- Memory ----------------------------------------------------------------------------

    def gradient_checkpointing_enable(
        self,
        gradient_checkpointing_kwargs: Mapping[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Keep only the inputs of layers for the backward, which computes the rest again.

        Training then takes less memory and about a third more time. Values, gradients and random
        numbers stay the same. Copies of the model keep the setting; checkpoints do not store it.

        Args:
            gradient_checkpointing_kwargs: Only ``{"use_reentrant": False}`` is supported.
            every_n_layers: 2 does so in every second layer, the first included.
            offload: Only False is supported: inputs of layers stay on the device.

        Raises:
            ValueError: There is another setting, or no layer of the model supports it.
        """
        settings = dict(gradient_checkpointing_kwargs or {})
        if settings.pop("use_reentrant", False) or settings:
            raise ValueError(
                f"gradient_checkpointing_kwargs={gradient_checkpointing_kwargs!r}: the supported "
                "setting is {'use_reentrant': False}"
            )
        if offload or every_n_layers < 1:
            raise ValueError(
                f"every_n_layers={every_n_layers!r}, offload={offload!r}: give a number of layers "
                "of at least 1, and leave out offload: inputs of layers stay on the device"
            )
        layers = self._layers()
        if not layers:
            raise ValueError(f"the layers of this {type(self).__name__} cannot be recomputed")
        for number, layer in enumerate(layers):
            layer.recomputed = number % every_n_layers == 0

    def gradient_checkpointing_disable(self) -> None:
        """Keep all values for the backward again, as at first."""
        for layer in self._layers():
            layer.recomputed = False

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        """The newer name of :meth:`gradient_checkpointing_enable` in transformers."""
        self.gradient_checkpointing_enable(activation_checkpointing_kwargs, **settings)

    activation_checkpointing_disable = gradient_checkpointing_disable

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether the backward computes values of layers again."""
        return any(layer.recomputed for layer in self._layers())

    def _layers(self) -> list[RecomputedLayer]:
        return [one for one in self.modules() if isinstance(one, RecomputedLayer)]

    # --- Files -----------------------------------------------------------------------------

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast | None:
        """The tokenizer of the model; None if there is none or it could not be read."""
        return None

    def save_pretrained(
        self,
        directory: str | os.PathLike[str],
        *,
        is_main_process: bool = True,
        safe_serialization: bool = True,
        state_dict: Mapping[str, Tensor] | None = None,
        force: bool = False,
        max_shard_size: int | str | None = None,
        **others: Any,
    ) -> tuple[str, ...]:
        """Write the model as a directory that any tool for Hugging Face checkpoints loads.

        The weights are the same bytes that ``fdl flodl-hf export`` writes. The configuration names
        the class and its labels. The tokenizer's files are written too, if there is a tokenizer.

        Args:
            directory: Where to write; created with its parents.
            is_main_process: False writes nothing: another process of the training does.
            safe_serialization: True, because weights are only written as safetensors.
            state_dict: None: the values of the model are written.
            force: Replace an existing model, with its tokenizer.
            max_shard_size: Bytes of tensors in one file, as a number or like ``"5GB"``.
            **others: Arguments of transformers that mean nothing here, as None or False.

        Returns:
            The files written, by their names in the directory.

        Raises:
            FlodlError: The directory holds a model already, or layers have adapters that are not
                merged.
            OSError: The system refused.
            TypeError: There is no such argument.
            ValueError: ``max_shard_size`` is not a size, or an argument asks for something else.
        """
        for name, value in others.items():
            if value not in (None, False) and name not in ("save_peft_format", "token"):
                reason = _ELSEWHERE.get(name, "see help(model.save_pretrained)")
                raise TypeError(f"save_pretrained() takes no argument {name!r}: {reason}")
        if not safe_serialization:
            raise ValueError("safe_serialization=False: weights are only written as safetensors")
        if state_dict is not None:
            raise ValueError(
                "state_dict: the values of the model are written; call "
                "model.load_state_dict(state_dict) first"
            )
        if not is_main_process:
            return ()
        from flodl.hf.export import save_model

        config = self.config
        return save_model(
            self._graph,
            config.replace(architectures=(config.class_name(self.kind),)),
            Path(directory),
            tokenizer=self.tokenizer,
            force=force,
            max_shard_size=max_shard_size,
        )

    def __repr__(self) -> str:
        labels = f", {self.num_labels} labels" if self.kind.labelled else ""
        return f"{type(self).__name__}({self.num_parameters():,} parameters{labels})"


def _fields_set_since(described: str | None, config: EncoderConfig) -> dict[str, Any]:
    """The fields of a configuration that differ from the text that it had."""
    before = {} if described is None else json.loads(described)
    after = config.source
    return {name: value for name, value in after.items() if before.get(name) != value}
