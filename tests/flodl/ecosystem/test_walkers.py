"""Tools that walk over modules: torchinfo's table, torch's counter of operations, initialisers."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.flodl.ecosystem.networks import make_branching, mixture, mixture_inputs, recurrent


def test_torchinfo_counts_what_the_graph_holds():
    from torchinfo import summary

    graph, inputs = mixture(), mixture_inputs()
    table = summary(graph, input_data=inputs, verbose=0, depth=6)
    assert table.total_params == sum(p.numel() for p in graph.parameters()) == 1641
    shapes = {layer.var_name: layer.output_size for layer in table.summary_list}
    assert shapes["encoded"] == [5, 16]
    assert shapes["mixed"] == [5, 16]
    assert shapes["map_7"] == [20, 4]
    assert shapes["head"] == [5, 3]
    assert "SoftmaxRouter" in str(table)


def test_torchinfo_walks_stateful_and_branching_graphs():
    from torchinfo import summary

    for graph in (recurrent(), make_branching()):
        table = summary(graph, input_data=(torch.randn(5, 8),), verbose=0, depth=6)
        assert table.total_params == sum(p.numel() for p in graph.parameters())


def test_operations_are_counted_per_module():
    graph, inputs = mixture(), mixture_inputs()
    with FlopCounterMode(display=False) as counter:
        graph(*inputs)
    # 2·B·in·out for every Linear: the loop's runs three times, the map's on four pieces.
    layers = [(8, 16), (16, 16), (16, 16), (16, 2), (16, 16), (16, 16), *[(16, 16)] * 3]
    expected = sum(2 * 5 * i * o for i, o in layers) + 2 * 20 * 4 * 4 + 2 * 5 * 16 * 3
    assert counter.get_total_flops() == expected
    assert sum(counter.get_flop_counts()["Graph.loop_6"].values()) == 3 * 2 * 5 * 16 * 16


def test_apply_and_hooks_reach_every_module_once():
    graph, inputs = mixture(), mixture_inputs()
    visited: list[nn.Module] = []
    graph.apply(visited.append)
    assert len(visited) == len(set(visited)) == len(list(graph.modules()))
    called: list[str] = []
    for name, module in graph.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.append(name))
    graph(*inputs)
    assert called.count("loop_6.body") == 3
    assert called.count("mixed.experts.1") == called.count("encoded.block") == 1
    assert called[-1] == ""
