"""Arguments of ``from_pretrained`` that programs for ``transformers`` give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flodl.hf.configs.labels import names_by_id
from flodl.hf.errors import ConfigError

_ATTENTION: Final = ("sdpa", "eager")

_REFUSED: Final[Mapping[str, str]] = {
    "device_map": 'give device="cuda" or another device; a model is on one device',
    "load_in_8bit": 'give dtype="bfloat16" for half the memory',
    "load_in_4bit": 'give dtype="bfloat16" for half the memory',
    "quantization_config": 'give dtype="bfloat16" for half the memory',
    "trust_remote_code": "flodl never runs code of a checkpoint: leave it out",
    "use_auth_token": "give token=",
    "output_hidden_states": "ask in the call: model(**batch, output_hidden_states=True)",
    "output_attentions": "ask in the call: model(**batch, output_attentions=True)",
    "output_loading_info": "read model.load_report afterwards",
    "config": "give num_labels=, id2label= or problem_type=; config.json says everything else",
    "state_dict": "call model.load_state_dict(...) afterwards",
    "from_tf": "convert the checkpoint to safetensors first",
    "from_flax": "convert the checkpoint to safetensors first",
    "max_memory": "a model is on one device: give device=",
    "offload_folder": "weights are memory-mapped: leave it out",
    "force_download": "remove the repository from the cache first",
    "proxies": "set HTTPS_PROXY",
}
"""Arguments that flodl does not have -> what to do instead; None and False ask for nothing."""

_WITHOUT_EFFECT: Final = ("low_cpu_mem_usage", "use_safetensors", "return_dict")
"""Arguments that ask for what flodl always does; only False would ask for something else."""


def settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments in the spelling of flodl.

    Args:
        options: The arguments of the caller.

    Raises:
        TypeError: flodl has nothing like an argument; the message says what to do instead.
        ValueError: An argument has a value that flodl does not support, or two contradict.
        ConfigError: ``id2label`` and ``label2id`` contradict.
    """
    found = {name: value for name, value in options.items() if not _asks_for_nothing(name, value)}
    for name in found:
        if name in _REFUSED:
            raise TypeError(f"from_pretrained() takes no argument {name!r}: {_REFUSED[name]}")
    _settle_dtype(found)
    _settle_attention(found)
    _settle_labels(found)
    if found.pop("ignore_mismatched_sizes", False):
        found["head_init"] = "replace"
    return found


def _asks_for_nothing(name: str, value: object) -> bool:
    if name in _WITHOUT_EFFECT:
        if value is False and name != "low_cpu_mem_usage":
            raise ValueError(f"{name}=False: flodl only reads safetensors and returns named values")
        return True
    return name in _REFUSED and (value is None or value is False)


def _settle_dtype(found: dict[str, Any]) -> None:
    given = {name: found.pop(name) for name in ("dtype", "torch_dtype") if name in found}
    kinds = {str(one).removeprefix("torch.") for one in given.values() if one is not None}
    if len(kinds) > 1:
        raise ValueError(f"dtype and torch_dtype contradict each other: {given}")
    if kinds and kinds != {"auto"}:
        found["dtype"] = next(one for one in given.values() if one is not None)


def _settle_attention(found: dict[str, Any]) -> None:
    wanted = found.pop("attn_implementation", None)
    if wanted is not None and wanted not in _ATTENTION:
        raise ValueError(
            f"attn_implementation={wanted!r}: flodl has one attention, which calls torch's "
            "scaled_dot_product_attention; leave it out, or give 'sdpa' or 'eager'"
        )


def _settle_labels(found: dict[str, Any]) -> None:
    numbers = found.pop("label2id", None)
    if numbers is None:
        return
    names = names_by_id(numbers)
    given = found.setdefault("id2label", names)
    if given is None:
        found["id2label"] = given = names
    listed = [given[key] for key in sorted(given, key=int)] if isinstance(given, Mapping) else given
    if list(listed) != list(names):
        raise ConfigError(f"id2label {given!r} and label2id {numbers!r} contradict each other")
