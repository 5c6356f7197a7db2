"""The outputs of models: values with names, which are also a tuple and a dictionary.

The names, and the order of the values, are those of ``transformers``::

    out = model(**batch, labels=labels)
    out.loss, out["logits"], out[0]
    loss, logits = out[:2]

A value that the model did not compute is None as an attribute. It is left out of the tuple and of
the dictionary.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from torch import Tensor
from torch.utils import _pytree

Layers: TypeAlias = tuple[Tensor, ...]
"""One tensor per layer."""


class ModelOutput(dict[str, Any]):
    """Named values in order; those that are None are left out.

    A number or a slice as index counts the values that are there. Iteration gives names, as for
    every dictionary; :meth:`to_tuple` gives the values.

    Args:
        **values: The values by name. The order of the class counts, not that of the call.

    Raises:
        TypeError: The class has no value of that name.
    """

    names: ClassVar[tuple[str, ...]] = ()
    """The names of all values, in order."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        for name in self.names:
            value = values.pop(name, None)
            if value is not None:
                dict.__setitem__(self, name, value)
        if values:
            raise TypeError(
                f"{type(self).__name__} has no value {next(iter(values))!r}; it has "
                f"{', '.join(self.names)}"
            )

    def __getattr__(self, name: str) -> Any:
        if name in type(self).names:
            return self.get(name)
        raise AttributeError(
            f"{type(self).__name__} has no value {name!r}; it has {', '.join(type(self).names)}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self.names:
            raise KeyError(f"{name!r} is not one of {', '.join(self.names)}")
        values = {**self, name: value}
        self.clear()
        self.update((key, values[key]) for key in self.names if values.get(key) is not None)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        return self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """The values that are there, in order."""
        return tuple(self.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), dict(self))

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.names = tuple(name for name in cls.__annotations__ if name != "names")
        # So that torch's own tools, such as export and checkpointing, find the tensors.
        _pytree.register_pytree_node(
            cls,
            lambda output: (list(output.values()), list(output)),
            lambda values, names: cls(**dict(zip(names, values, strict=True))),
            flatten_with_keys_fn=lambda output: (
                [(_pytree.MappingKey(name), value) for name, value in output.items()],
                list(output),
            ),
            serialized_type_name=f"{cls.__module__}.{cls.__name__}",
        )


def _made(cls: type[ModelOutput], values: dict[str, Any]) -> ModelOutput:
    return cls(**values)


class BaseModelOutputWithPooling(ModelOutput):
    """The outputs of an encoder.

    Attributes:
        last_hidden_state: ``[B, S, H]``.
        pooler_output: ``[B, H]``; None without a pooler.
        hidden_states: The input of the first layer and the output of each layer, ``[B, S, H]``
            each; None unless asked for.
        attentions: The attention weights of each layer, ``[B, heads, S, S]`` each; None unless
            asked for.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None
    hidden_states: Layers | None
    attentions: Layers | None


class SequenceClassifierOutput(ModelOutput):
    """The outputs of a head that gives one answer per text.

    Attributes:
        loss: 0-d; None without labels.
        logits: ``[B, labels]``.
        hidden_states: As for :class:`BaseModelOutputWithPooling`.
        attentions: As there.
    """

    loss: Tensor | None
    logits: Tensor
    hidden_states: Layers | None
    attentions: Layers | None


class TokenClassifierOutput(ModelOutput):
    """The outputs of a head that gives one label per token.

    Attributes:
        loss: 0-d; None without labels.
        logits: ``[B, S, labels]``; those at padding have no meaning.
        hidden_states: As for :class:`BaseModelOutputWithPooling`.
        attentions: As there.
    """

    loss: Tensor | None
    logits: Tensor
    hidden_states: Layers | None
    attentions: Layers | None


class MaskedLMOutput(ModelOutput):
    """The outputs of a head that predicts masked tokens.

    Attributes:
        loss: 0-d; None without labels.
        logits: ``[B, S, V]``; those at padding have no meaning.
        hidden_states: As for :class:`BaseModelOutputWithPooling`.
        attentions: As there.
    """

    loss: Tensor | None
    logits: Tensor
    hidden_states: Layers | None
    attentions: Layers | None


class QuestionAnsweringModelOutput(ModelOutput):
    """The outputs of a head that finds answers in a text.

    Attributes:
        loss: 0-d; None without positions.
        start_logits: ``[B, S]``.
        end_logits: ``[B, S]``.
        hidden_states: As for :class:`BaseModelOutputWithPooling`.
        attentions: As there.
    """

    loss: Tensor | None
    start_logits: Tensor
    end_logits: Tensor
    hidden_states: Layers | None
    attentions: Layers | None
