"""What a family of encoders says of itself; each file beside this one says it for one family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from torch import nn

from flodl.hf.config import EncoderConfig
from flodl.hf.errors import need
from flodl.hf.layers.encoder import Embeddings, Encoder, Part, Parts, Pooler, classifier
from flodl.hf.text.files import TokenizerFiles

if TYPE_CHECKING:
    from tokenizers import Tokenizer

C = TypeVar("C", bound=EncoderConfig)

IDS: Final = "input_ids"
MASK: Final = "attention_mask"
TYPES: Final = "token_type_ids"


Frame = Callable[[TokenizerFiles, str, str, "Tokenizer"], Any]
"""Makes the step that puts a first and a last token around a text and around a pair."""


def framing(*, between: int = 1, second: int = 1) -> Frame:
    """The usual frame, with a number of tokens between two texts and the segment of the second."""

    def framed(files: TokenizerFiles, first: str, end: str, tokenizer: Tokenizer) -> Any:  # noqa: ARG001
        return need("tokenizers").processors.TemplateProcessing(
            single=[f"{first}:0", "$A:0", f"{end}:0"],
            pair=[
                *(f"{first}:0", "$A:0"),
                *[f"{end}:0"] * between,
                *(f"$B:{second}", f"{end}:{second}"),
            ],
            special_tokens=[(one, tokenizer.token_to_id(one)) for one in (first, end)],
        )

    return framed


_USUAL: Final = framing()


@dataclass(frozen=True, slots=True)
class Words:
    """How a tokenizer is made of the files of a vocabulary.

    Attributes:
        files: The files; the first one names the kind of vocabulary.
        special: The special tokens by role, if no file names them.
        build: Makes the tokenizer of the files and the special tokens, without these tokens.
        settings: Settings of ``tokenizer_config.json`` that have an effect.
        mask_takes_space: Whether the mask token includes the space before it.
        framed_by_cls: Whether the first token also begins and the last token also ends a text.
        frame: Makes the step that puts special tokens around texts.
    """

    files: tuple[str, ...]
    special: Mapping[str, str]
    build: Callable[[TokenizerFiles, Mapping[str, str]], Tokenizer]
    settings: tuple[str, ...]
    mask_takes_space: bool = False
    framed_by_cls: bool = False
    frame: Frame = _USUAL


class Family(Generic[C]):
    """One family: its layers, its heads, the names of its weights and its tokenizer.

    What a family does not say is as in BERT.

    Attributes:
        config: Its configuration.
        encoder_name: The name of the module with the layers.
        table: The name of the table of words in the encoder.
        decoders: Names of the output layers that may share the table of words.
        heads: Further names of modules of heads.
        finder: The module of a head that finds answers.
        token_dropout: The field with the dropout before a classifier of tokens.
        pooler: Makes a pooler of the width of the states; None for a family without one.
        classifies_pooled: Whether a classifier of rows reads the pooler's output.
        reads_segments: Whether segments are passed to the model, if it has a table of them.
        offset_positions: Whether positions are counted from the one after the id of padding.
        turns_by_position: Whether attention uses positions.
        pads_see_all: Whether padding attends to all positions.
        tokenizer_class: The tokenizer's class in transformers, if its models read segments.
        inputs: What a call of that tokenizer returns.
        words: The files of a vocabulary of this family; None if it always has a tokenizer.json.
    """

    config: type[C]
    encoder_name = "encoder"
    table = "embeddings.word_embeddings"
    decoders: tuple[str, ...]
    heads: tuple[str, ...] = ()
    finder = "qa_outputs"
    token_dropout = "classifier_dropout"
    pooler: Callable[[int], nn.Module] | None = Pooler
    classifies_pooled = False
    reads_segments = True
    offset_positions = False
    turns_by_position = False
    pads_see_all = False
    tokenizer_class: str | None = None
    inputs: tuple[str, ...] = (IDS, MASK)
    words: Words | None = None

    def embeddings(self, config: C) -> nn.Module:
        """The module that turns ids into vectors."""
        return Embeddings(config, width=config.hidden_size, offset_positions=self.offset_positions)

    def encoder(self, config: C) -> nn.Module:
        """The module with all layers."""
        return Encoder(config)

    def final_norm(self, config: C) -> nn.Module | None:  # noqa: ARG002
        """A norm after the layers; None for no such norm."""
        return None

    def averages(self, config: C) -> bool:  # noqa: ARG002
        """Whether a classifier of rows reads all their tokens, not the first one."""
        return False

    def ties_always(self, config: C) -> bool:  # noqa: ARG002
        """Whether the output layer has no table of its own, whatever the configuration says."""
        return False

    def row_classifier(self, config: C) -> Parts:
        """The head for one answer per row: ``[B, labels]``.

        It begins at ``pooler_output [B, H]`` if :attr:`classifies_pooled`, else at the states.
        """
        return self.token_classifier(config)

    def token_classifier(self, config: C) -> Parts:
        """The head for one label per token: ``[B, S, labels]``."""
        return classifier(config, getattr(config, self.token_dropout))

    def span_finder(self, config: C) -> Parts:
        """The head for the start and the end of an answer: ``[B, S, 2]``."""
        return (Part(nn.Linear(config.hidden_size, 2), self.finder),)

    def word_decoder(self, config: C) -> Parts:
        """The head for the words at masks, ``[B, S, V]``; nothing is tied yet."""
        raise NotImplementedError
