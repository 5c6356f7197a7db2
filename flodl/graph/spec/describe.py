"""Write descriptions of graphs; every entry is tested at once."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.errors import BuildError
from flodl.graph.base import GraphBase
from flodl.graph.freezing import PINNED
from flodl.graph.spec.assembly import CONTAINERS, DEEPEST, PRECISIONS, Assembler
from flodl.graph.spec.place import Place
from flodl.graph.spec.values import UndescribableError, Vocabulary, encode
from flodl.graph.spec.wiring import write_wiring
from flodl.graph.topology import Node
from flodl.nn.layers import SelfAttention

_PRECISION_NAMES = {dtype: name for name, dtype in PRECISIONS.items()}


class Describer:
    """Writes the entries of a description; a module used several times is described once.

    Every entry is read back at once and its module made (without memory if the caller says so). If
    the result differs, it is refused here, where its node is known.

    Args:
        graph_class: The class of the graph and of the graphs nested in it.

    Attributes:
        entries: The description of every module; its parts come before it.
    """

    def __init__(self, graph_class: type[GraphBase]) -> None:
        self.entries: list[dict[str, Any]] = []
        self._graph_class = graph_class
        # Holds the modules too: the id of a deleted module may be reused.
        self._indices: dict[int, tuple[int, nn.Module]] = {}
        self._open: set[int] = set()
        # Testing an entry imports nothing: every class named in it is already loaded.
        self._words = Vocabulary()
        self.assembler = Assembler(self._words, graph_class, None)

    def graph(self, graph: GraphBase) -> dict[str, Any]:
        """Describe the wiring of a graph and all modules that it uses.

        Raises:
            UndescribableError: A node cannot be described; the message names it and the reason.
        """
        if type(graph) is not self._graph_class:
            raise UndescribableError(
                f"{type(graph).__name__} is a graph of another class than "
                f"{self._graph_class.__name__}"
            )
        return write_wiring(graph.topology, graph._modules, self._of_node)

    def _of_node(self, node: Node, module: nn.Module) -> int:
        try:
            return self.module(module)
        except UndescribableError as reason:
            raise UndescribableError(f"{node.id}: {reason}") from None

    def module(self, module: nn.Module) -> int:
        """Describe a module if it is not described yet.

        Returns:
            Index of its entry.

        Raises:
            UndescribableError: The module or a part of it cannot be described.
        """
        if id(module) in self._indices:
            return self._indices[id(module)][0]
        if id(module) in self._open:
            raise UndescribableError(f"{type(module).__name__} contains itself")
        if len(self._open) >= DEEPEST:
            raise UndescribableError(f"there are more than {DEEPEST} levels of modules")
        self._open.add(id(module))
        entry = self._entry(module)
        made = self._try_out(module, entry)
        self._match_precision(module, made, entry)
        self._open.remove(id(module))
        self.entries.append(entry)
        self._indices[id(module)] = len(self.entries) - 1, module
        return len(self.entries) - 1

    def _entry(self, module: nn.Module) -> dict[str, Any]:
        if isinstance(module, GraphBase):
            return {"graph": self.graph(module)}
        name = self._words.add(type(module))
        if type(module) in CONTAINERS:
            return {"class": name, "children": self._children(module)}
        arguments = self._within(module, lambda: constructor_arguments(module))
        entry: dict[str, Any] = {"class": name}
        if arguments.positional:
            entry["positional"] = [
                self._argument(module, "*", value) for value in arguments.positional
            ]
        entry["arguments"] = {
            key: self._argument(module, key, value) for key, value in arguments.named.items()
        }
        return entry

    def _children(self, module: nn.Module) -> list[list[Any]]:
        children: list[list[Any]] = []
        for name, child in module._modules.items():
            if child is None:
                raise UndescribableError(f"{type(module).__name__} has no module at {name!r}")
            describe = functools.partial(self.module, child)
            children.append([name, self._within(module, describe, name)])
        return children

    def _argument(self, module: nn.Module, name: str, value: object) -> Any:
        return self._within(module, lambda: encode(value, self.module, self._words.add), name)

    def _within(self, module: nn.Module, describe: Callable[[], Any], part: str = "") -> Any:
        """Call ``describe``; add the class and the argument or child to its error."""
        try:
            return describe()
        except UndescribableError as reason:
            where = f"{type(module).__name__}.{part}" if part else type(module).__name__
            raise UndescribableError(f"{where}: {reason}") from None

    def _try_out(self, module: nn.Module, entry: dict[str, Any]) -> nn.Module:
        try:
            made = self.assembler.add(Place(entry, type(module).__name__))
        except BuildError as problem:
            raise UndescribableError(str(problem)) from problem
        found = difference(module, made)
        if found is not None:
            raise UndescribableError(
                f"{type(module).__name__} made again of {entry.get('arguments', {})} is not the "
                f"same: {found}; give the class a method flodl_spec() that returns its "
                "constructor's arguments, and keep nothing else on it"
            )
        return made

    def _match_precision(self, module: nn.Module, made: nn.Module, entry: dict[str, Any]) -> None:
        if dtypes(made) == dtypes(module):
            return
        precision = one_precision(module)
        if precision in _PRECISION_NAMES and "class" in entry and "children" not in entry:
            made.to(precision)
            entry["dtype"] = _PRECISION_NAMES[precision]
        if dtypes(made) != dtypes(module):
            raise UndescribableError(
                f"{type(module).__name__} holds tensors of several dtypes that its constructor "
                "does not give it; cast the whole module, or make nodes of its parts"
            )


HOOK = "flodl_spec"
"""Method of a module that returns its constructor's arguments as a mapping."""

_REMEDY = f"give the class a method {HOOK}() that returns its constructor's arguments"

# Attributes that torch keeps on every module, and the frozen state, are not architecture.
_OF_ANY_MODULE = frozenset(vars(nn.Module())) | {PINNED}


class Arguments(NamedTuple):
    """The arguments for a constructor."""

    positional: tuple[Any, ...]
    named: Mapping[str, Any]


def constructor_arguments(module: nn.Module) -> Arguments:
    """Recover the arguments that a module was made with.

    Raises:
        UndescribableError: An argument without a default is not kept, or only as a tensor.
    """
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        raise UndescribableError("it has not seen an input yet; run the graph once")
    hook = getattr(module, HOOK, None)
    if callable(hook):
        return _from_hook(hook())
    if type(module) in _KNOWN:
        return Arguments((), _KNOWN[type(module)](module))
    return _from_signature(module)


def _from_hook(given: object) -> Arguments:
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise UndescribableError(f"{HOOK}() must return a mapping from argument names to values")
    return Arguments((), given)


def _from_signature(module: nn.Module) -> Arguments:
    try:
        parameters = inspect.signature(type(module)).parameters.values()
    except (TypeError, ValueError):
        raise UndescribableError(f"its constructor has no signature; {_REMEDY}") from None
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            values = getattr(module, parameter.name, ())
            positional.extend(values if isinstance(values, tuple | list) else ())
        elif not hasattr(module, parameter.name):
            if parameter.default is parameter.empty:
                raise UndescribableError(
                    f"its constructor needs {parameter.name!r}, which it keeps under no such name; "
                    f"{_REMEDY}"
                )
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(_kept(module, parameter))
        else:
            named[parameter.name] = _kept(module, parameter)
    return Arguments(tuple(positional), named)


def _kept(module: nn.Module, parameter: inspect.Parameter) -> Any:
    """The value of an argument; for a flag kept as a parameter, whether the parameter exists."""
    value = getattr(module, parameter.name)
    is_flag = isinstance(parameter.default, bool) or parameter.annotation in (bool, "bool")
    if is_flag and parameter.name in (*module._parameters, *module._buffers):
        return value is not None
    if isinstance(value, Tensor):
        raise UndescribableError(
            f"its constructor takes a tensor as {parameter.name!r}, and a description holds no "
            f"numbers of weights; {_REMEDY}, made of plain values"
        )
    return value


# --- Modules that keep their arguments under other names -----------------------------------


def _named(*names: str) -> Callable[[Any], dict[str, Any]]:
    return lambda module: {name: getattr(module, name) for name in names}


_RECURRENT = (
    "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"
)  # fmt: skip


def _attention(module: nn.MultiheadAttention) -> dict[str, Any]:
    return {
        **_named("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim")(module),
        "bias": module.in_proj_bias is not None,
        "add_bias_kv": module.bias_k is not None,
        "batch_first": module.batch_first,
    }


# These two can also be given as a string, which most callers use.
_ACTIVATIONS: dict[Any, str] = {nn.functional.relu: "relu", nn.functional.gelu: "gelu"}


def _transformer_layer(
    module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
) -> dict[str, Any]:
    attention = module.self_attn
    return {
        "d_model": attention.embed_dim,
        "nhead": attention.num_heads,
        "dim_feedforward": module.linear1.out_features,
        "dropout": module.dropout.p,
        "activation": _ACTIVATIONS.get(module.activation, module.activation),
        "layer_norm_eps": module.norm1.eps,
        "batch_first": attention.batch_first,
        "norm_first": module.norm_first,
        "bias": module.linear1.bias is not None,
    }


def _encoder(module: nn.TransformerEncoder) -> dict[str, Any]:
    return {
        "encoder_layer": module.layers[0],
        **_named("num_layers", "norm", "enable_nested_tensor", "mask_check")(module),
    }


def _self_attention(module: SelfAttention) -> dict[str, Any]:
    return {"embed": module.attention.embed_dim, "heads": module.attention.num_heads}


_KNOWN: dict[type, Callable[[Any], dict[str, Any]]] = {
    nn.RNN: _named(*_RECURRENT, "nonlinearity"),
    nn.GRU: _named(*_RECURRENT),
    nn.LSTM: _named(*_RECURRENT, "proj_size"),
    nn.MultiheadAttention: _attention,
    nn.TransformerEncoderLayer: _transformer_layer,
    nn.TransformerDecoderLayer: _transformer_layer,
    nn.TransformerEncoder: _encoder,
    SelfAttention: _self_attention,
}


# --- Comparison ----------------------------------------------------------------------------


def difference(original: nn.Module, made: nn.Module) -> str | None:
    """Return the first difference between a module and the one made from its description, or None.

    Compared are all modules below, by path: classes, names and shapes of parameters and buffers,
    plain attributes, and the texts of ``extra_repr``. Attributes of a class with the hook are not
    compared.
    """
    ours, theirs = (dict(m.named_modules(remove_duplicate=False)) for m in (original, made))
    if ours.keys() != theirs.keys():
        path = sorted(ours.keys() ^ theirs.keys())[0]
        return f"there is {'no' if path in ours else 'a'} submodule {path!r}"
    for path, module in ours.items():
        where = f" of {path!r}" if path else ""
        found = _difference_here(module, theirs[path])
        if found is not None:
            return f"{found}{where}"
    return None


def _difference_here(ours: nn.Module, theirs: nn.Module) -> str | None:
    if type(ours) is not type(theirs):
        return f"the class is {type(theirs).__name__} instead of {type(ours).__name__}"
    if "forward" in vars(ours):
        return "forward, which was replaced on the instance, is that of the class"
    for what, mine, other in (
        ("parameters", ours._parameters, theirs._parameters),
        ("buffers", ours._buffers, theirs._buffers),
    ):
        shapes, others = dict(_shapes(mine)), dict(_shapes(other))
        if shapes != others:
            return f"the {what} have shapes {others} instead of {shapes}"
    if isinstance(ours, GraphBase) or callable(getattr(ours, HOOK, None)):
        return None
    for name, value in vars(ours).items():
        if name not in _OF_ANY_MODULE and _is_plain(value):
            other_value = vars(theirs).get(name)
            if type(value) is not type(other_value) or repr(value) != repr(other_value):
                return f"the attribute {name} is {other_value!r:.80} instead of {value!r:.80}"
    if ours.extra_repr() != theirs.extra_repr():
        return f"it presents itself as {theirs.extra_repr()!r} instead of {ours.extra_repr()!r}"
    return None


def _shapes(tensors: Mapping[str, Tensor | None]) -> Iterator[tuple[str, list[int] | None]]:
    return ((name, None if t is None else list(t.shape)) for name, t in tensors.items())


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(item) for item in (*value, *value.values()))
    named = types.FunctionType | types.BuiltinFunctionType | type
    return value is None or isinstance(value, bool | int | float | str | torch.dtype | named)


# --- Precision -----------------------------------------------------------------------------


def dtypes(module: nn.Module) -> list[torch.dtype]:
    """The dtypes of all parameters and buffers, in registration order, with duplicates."""
    named = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    return [tensor.dtype for _, tensor in named]


def one_precision(module: nn.Module) -> torch.dtype | None:
    """The one dtype of all floating-point tensors of a module; None if there are several."""
    floating = {dtype for dtype in dtypes(module) if dtype.is_floating_point}
    return floating.pop() if len(floating) == 1 else None
