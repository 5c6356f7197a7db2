"""The vocabulary of a tokenizer: its special tokens, ids of tokens, tokens of ids, texts of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar, overload

import numpy as np
import torch

from flodl.hf.text.conventions import Conventions
from flodl.hf.text.files import ROLES, TokenizerFiles
from flodl.hf.text.source import TokenizerSource

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

Ids: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | torch.Tensor

# English only, as BERT's word pieces were made.
_CLEANED = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)

NewTokens: TypeAlias = "str | AddedToken | Sequence[str | AddedToken]"

_MORE = ("additional_special_tokens", "extra_special_tokens")
SPECIAL_NAMES = (*(f"{role}_token" for role in ROLES), *_MORE)
"""The names by which special tokens are given."""

_CALL = "call tokenizer(texts, padding=True, return_tensors='pt')"
_ELSEWHERE: Mapping[str, str] = {
    "encode_plus": _CALL,
    "batch_encode_plus": _CALL,
    "prepare_for_model": _CALL,
    "build_inputs_with_special_tokens": _CALL,
    "create_token_type_ids_from_sequences": _CALL,
    "save_vocabulary": "save_pretrained(folder) writes all files",
    "push_to_hub": "write a folder with save_pretrained, then huggingface_hub.upload_folder",
    "apply_chat_template": "encoders have no chats",
    "train_new_from_iterator": "train backend_tokenizer, then PreTrainedTokenizerFast.from_inner",
}
"""Names of ``transformers`` that have another name here -> what to write instead."""


_Value = TypeVar("_Value", str, int)


class _Special(Generic[_Value]):
    """A special token of a tokenizer, or its id, or None; set it to name another one.

    Args:
        kind: ``str`` for the token, ``int`` for its id.
        text: What it is.
    """

    def __init__(self, kind: type[_Value], text: str) -> None:
        self.kind: type[Any] = kind
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self.token = name.removesuffix("_id")
        self.role = self.token.removesuffix("_token")

    @overload
    def __get__(self, words: None, owner: type) -> Self: ...
    @overload
    def __get__(self, words: Vocabulary, owner: type) -> _Value | None: ...
    def __get__(self, words: Vocabulary | None, owner: type) -> Any:
        if words is None:
            return self
        return words._id_of(self.role) if self.kind is int else words._token_of(self.role)

    def __set__(self, words: Vocabulary, value: _Value) -> None:
        token = words.inner.id_to_token(value) if isinstance(value, int) else value
        if token is None:
            raise ValueError(f"{value} is not the id of a token: name one by {self.token} = ...")
        words.add_special_tokens({self.token: token})


class Vocabulary:
    """What a tokenizer knows of its tokens; the base of :class:`~flodl.hf.PreTrainedTokenizerFast`.

    Args:
        source: The tokenizer of the ``tokenizers`` package, and its files.
        known: What its family settles beside the vocabulary.
        model_pad_id: The pad id of its model, if that is known.
    """

    def __init__(
        self, source: TokenizerSource, known: Conventions, model_pad_id: int | None
    ) -> None:
        self.source = source
        self._known = known
        self._model_pad_id = model_pad_id

    @property
    def model_input_names(self) -> tuple[str, ...]:
        """The values that a call returns; segments only if the models of the family read them."""
        return self._known.model_input_names

    @property
    def inner(self) -> Tokenizer:
        """The tokenizer of the ``tokenizers`` package; leave its padding and truncation off."""
        return self.source.inner

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The same as :attr:`inner`, by the name that transformers has for it."""
        return self.inner

    @property
    def files(self) -> TokenizerFiles | None:
        """The files it was read from; None if it was made from a tokenizer object."""
        return self.source.files

    @property
    def name_or_path(self) -> str:
        """The directory or repository it was read from; empty if it was made in memory."""
        return "" if self.files is None else self.files.origin

    @property
    def is_fast(self) -> bool:
        """True: the ``tokenizers`` package does the work."""
        return True

    @property
    def pad_id(self) -> int | None:
        """The id of padding; None if neither the files nor the model name one."""
        found = (self.source.pad_id, self._model_pad_id, self.source.usual_pad_id)
        return next((number for number in found if number is not None), None)

    pad_token_id = _Special(int, "The id of padding.")

    @property
    def pad_token_type_id(self) -> int:
        """The segment of padding."""
        return self._known.pad_token_type_id

    pad_token = _Special(str, "The token of padding.")
    mask_token = _Special(str, "The token that marks a gap, ``[MASK]`` or ``<mask>``.")
    mask_token_id = _Special(int, "The id of the mask token.")
    cls_token = _Special(str, "The first token of every row.")
    cls_token_id = _Special(int, "The id of the first token.")
    sep_token = _Special(str, "The token at the end of every text.")
    sep_token_id = _Special(int, "The id of the token at the end of every text.")
    unk_token = _Special(str, "The token for words that the vocabulary lacks.")
    unk_token_id = _Special(int, "The id of the token for unknown words.")
    bos_token = _Special(str, "The token that begins a text; in some families the first token.")
    bos_token_id = _Special(int, "The id of the token that begins a text.")
    eos_token = _Special(str, "The token that ends a text; in some families that of every text.")
    eos_token_id = _Special(int, "The id of the token that ends a text.")

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens by name, such as ``cls_token``."""
        named = {f"{role}_token": getattr(self, f"{role}_token") for role in ROLES}
        return {name: token for name, token in named.items() if token is not None}

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens, each once: those with a name, then others that were added."""
        named = self.special_tokens_map.values()
        added = (t.content for t in self.added_tokens_decoder.values() if t.special)
        return list(dict.fromkeys([*named, *added]))

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of :attr:`all_special_tokens`."""
        return self.convert_tokens_to_ids(self.all_special_tokens)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that are never split, by id."""
        found: dict[int, AddedToken] = self.inner.get_added_tokens_decoder()
        return dict(sorted(found.items()))

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """The ids of the tokens that are never split."""
        return {token.content: number for number, token in self.added_tokens_decoder.items()}

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, without tokens added later."""
        size: int = self.inner.get_vocab_size(with_added_tokens=False)
        return size

    def __len__(self) -> int:
        """Tokens of the vocabulary, with tokens added later."""
        size: int = self.inner.get_vocab_size(with_added_tokens=True)
        return size

    @property
    def vocab(self) -> dict[str, int]:
        """The id of every token."""
        return self.get_vocab()

    def get_vocab(self) -> dict[str, int]:
        """The id of every token, with tokens added later."""
        vocab: dict[str, int] = self.inner.get_vocab(with_added_tokens=True)
        return vocab

    def get_added_vocab(self) -> dict[str, int]:
        """The same as :attr:`added_tokens_encoder`."""
        return self.added_tokens_encoder

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Special tokens that a row gets: of one text, or of a pair."""
        return self.inner.num_special_tokens_to_add(pair)

    def get_special_tokens_mask(
        self, token_ids: Sequence[int], *, already_has_special_tokens: bool = True
    ) -> list[int]:
        """1 for each id of a special token, 0 for others.

        Raises:
            ValueError: The ids are without their special tokens.
        """
        if not already_has_special_tokens:
            raise ValueError(
                "the ids must have their special tokens already; for texts, call the tokenizer "
                "with return_special_tokens_mask=True"
            )
        special = set(self.all_special_ids)
        return [int(number in special) for number in token_ids]

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str] | tuple[str, ...]) -> list[int]: ...
    def convert_tokens_to_ids(self, tokens: str | list[str] | tuple[str, ...]) -> Any:
        """The id of a token, or of each token; the unknown token's for one that is not there."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self.inner.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = ...) -> str | None: ...
    @overload
    def convert_ids_to_tokens(
        self, ids: Sequence[int], skip_special_tokens: bool = ...
    ) -> list[str | None]: ...
    def convert_ids_to_tokens(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False
    ) -> Any:
        """The token of an id, or of each id; None for an id that is not there."""
        numbers = plain(ids)
        if isinstance(numbers, int):
            return self.inner.id_to_token(numbers)
        left_out = set(self.all_special_ids) if skip_special_tokens else set()
        return [self.inner.id_to_token(number) for number in numbers if number not in left_out]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The text that tokens stand for."""
        decoder = self.inner.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(tokens)

    def decode(
        self,
        token_ids: Ids | Mapping[str, Ids],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> Any:
        """The text of a row of ids; for a batch, a list of texts.

        Args:
            token_ids: An id, a row or a batch: lists, tensors or arrays; or a mapping with these
                as ``input_ids``.
            skip_special_tokens: Leave special tokens out.
            clean_up_tokenization_spaces: Remove the spaces before punctuation. None: as the
                tokenizer's files say, else False. It has no effect on byte pairs (BPE).
        """
        ids = plain(token_ids["input_ids"] if isinstance(token_ids, Mapping) else token_ids)
        row: list[Any] = [ids] if isinstance(ids, int) else ids
        batched = bool(row) and isinstance(row[0], list)
        texts: list[str] = self.inner.decode_batch(
            row if batched else [row], skip_special_tokens=skip_special_tokens
        )
        clean = clean_up_tokenization_spaces
        if clean is None:
            clean = self._known.clean_up
        # Byte pairs keep all spaces, because they know those of the text.
        if clean and type(self.inner.model).__name__ != "BPE":
            for found, instead in _CLEANED:
                texts = [text.replace(found, instead) for text in texts]
        return texts if batched else texts[0]

    def batch_decode(
        self,
        sequences: Ids,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]:
        """The text of each row of ids; see :meth:`decode`."""
        found = self.decode(sequences, skip_special_tokens, clean_up_tokenization_spaces)
        return [found] if isinstance(found, str) else found

    def add_tokens(self, new_tokens: NewTokens, special_tokens: bool = False) -> int:
        """Add tokens that are never split, and return how many were not added before.

        The model needs a row for each new id: call
        ``model.resize_token_embeddings(len(tokenizer))``. All tokenizers that share this vocabulary
        get them. Do not call this while another thread encodes.
        """
        tokens = list(new_tokens) if isinstance(new_tokens, (list, tuple)) else [new_tokens]
        add = self.inner.add_special_tokens if special_tokens else self.inner.add_tokens
        added: int = add(tokens)
        return added

    def add_special_tokens(self, special_tokens_dict: Mapping[str, NewTokens]) -> int:
        """Name special tokens, add those that are not there, and return how many were added.

        Args:
            special_tokens_dict: A token by name (``pad_token``, ``mask_token``, …), or several by
                ``additional_special_tokens``.

        Raises:
            ValueError: There is no such name.
        """
        unknown = [name for name in special_tokens_dict if name not in SPECIAL_NAMES]
        if unknown:
            raise ValueError(
                f"there is no special token {unknown[0]!r}; there are {', '.join(SPECIAL_NAMES)}"
            )
        added = 0
        for name, value in special_tokens_dict.items():
            added += self.add_tokens(value, special_tokens=True)
            if name not in _MORE:
                role = name.removesuffix("_token")
                self.source.name_token(role, str(getattr(value, "content", value)))
        return added

    def __getattr__(self, name: str) -> Any:
        told = _ELSEWHERE.get(name, "backend_tokenizer is the tokenizer of the package tokenizers")
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: {told}")

    def _id_of(self, role: str) -> int | None:
        """The id of the token with a role; None if there is none."""
        if role == "pad":
            return self.pad_id
        token = self._token_of(role)
        return None if token is None else self.inner.token_to_id(token)

    def _token_of(self, role: str) -> str | None:
        """The token with a role, such as ``cls``; None if there is none."""
        if role == "pad":
            return None if self.pad_id is None else self.inner.id_to_token(self.pad_id)
        return self.source.special(role)


def plain(value: Any) -> Any:
    """Tensors and arrays as numbers and lists, at any depth of lists."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        flat = all(type(entry) is int for entry in value)
        return list(value) if flat else [plain(entry) for entry in value]
    return value
