"""Texts about a tree of graphs: its structure and its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from flodl.graph.graph import Graph


def tree_summary(graph: Graph) -> str:
    """Graphs as an indented tree, one line each: label, nodes, parameters, tags."""
    return "\n".join([_line(graph), *_below(graph, "")])


def _below(graph: Graph, indent: str) -> list[str]:
    lines: list[str] = []
    children = list(graph.tree_children().values())
    for child in children:
        last = child is children[-1]
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{_line(child)}")
        lines += _below(child, indent + ("   " if last else "│  "))
    return lines


def _line(graph: Graph) -> str:
    elements = sum(parameter.numel() for parameter in graph.parameters())
    nodes = len(graph.topology.nodes)
    tags = "".join(f" #{tag}" for tag in graph.topology.tagged_nodes)
    return (
        f"{graph.label or '(unlabelled)'}: {nodes} node{'s' * (nodes != 1)}, "
        f"{elements:,} parameters{tags}"
    )


def param_summary(graph: Graph) -> str:
    """A table with a row per child, one for the graph's own nodes, and one for all."""
    rows = [("", "tensors", "elements", "share", "")]
    owned = _parameters_by_owner(graph)
    everything = [parameter for parameters in owned.values() for parameter in parameters]
    total = _elements(everything)
    for owner, parameters in owned.items():
        elements = _elements(parameters)
        share = 100 * elements / total if total else 0.0
        rows.append(
            (owner, str(len(parameters)), f"{elements:,}", f"{share:.1f}%", _status(parameters))
        )
    rows.append(("total", str(len(everything)), f"{total:,}", "", _status(everything)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(row[c].rjust(widths[c]) for c in (1, 2, 3)), row[4]]
        ).rstrip()
        for row in rows
    )


def _parameters_by_owner(graph: Graph) -> dict[str, list[nn.Parameter]]:
    """Parameters by child label, then ``(own)``; a shared one only under its first node."""
    children = {id(child): label for label, child in graph.tree_children().items()}
    owned: dict[str, list[nn.Parameter]] = {label: [] for label in children.values()}
    own: list[nn.Parameter] = []
    seen: set[int] = set()
    for node in graph.topology.nodes:
        module = graph._modules[node.prefix] if node.prefix else None
        if module is None:
            continue
        owner = owned[children[id(module)]] if id(module) in children else own
        for parameter in module.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                owner.append(parameter)
    return {**owned, "(own)": own}


def _elements(parameters: list[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _status(parameters: list[nn.Parameter]) -> str:
    frozen = sum(not parameter.requires_grad for parameter in parameters)
    if not parameters:
        return "no parameters"
    if frozen in (0, len(parameters)):
        return "frozen" if frozen else "trainable"
    return f"{frozen}/{len(parameters)} frozen"
