"""Where boxes stand and how edges run."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from flodl.graph.draw.describe import describe
from flodl.graph.draw.diagram import Box, Diagram, Edge
from flodl.graph.draw.drawing import opened
from flodl.graph.draw.layout import layout
from flodl.graph.draw.style import Line, Role, Shape
from tests.rows import each_row

from .graphs import chain, everything, tower


def placed(graph, depth=1):
    return layout(opened(describe(graph), depth, ()))


def box(number, level, *, floats=False, shape=Shape.BOX):
    return Box(f"n{number}", f"kind{number}", "", shape, Role.OTHER, level, floats=floats)


@st.composite
def diagrams(draw):
    """Acyclic graphs with references, returning edges, and boxes that may float."""
    count = draw(st.integers(1, 25))
    levels: list[int] = []
    edges = []
    for number in range(count):
        sources = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        levels.append(1 + max((levels[source] for source in sources), default=-1))
        for source in sources:
            label = draw(st.sampled_from(["", "", "a tag"]))
            line = Line.REFERENCE if label else Line.FLOW
            edges.append(Edge(f"n{source}", f"n{number}", line, label))
    shapes = draw(st.lists(st.sampled_from(list(Shape)), min_size=count, max_size=count))
    floats = {n for n in range(count) if not levels[n] and draw(st.booleans())}
    for reader in floats:
        writer = draw(st.integers(0, count - 1))
        if writer != reader:
            edges.append(Edge(f"n{writer}", f"n{reader}", Line.STATE, back=True))
    boxes = [box(n, levels[n], floats=n in floats, shape=shapes[n]) for n in range(count)]
    return Diagram("", "random", tuple(boxes), tuple(edges))


def check(plan):
    """Boxes lie apart and inside the whole; edges join theirs and pass through no other."""
    areas = {}
    for place in plan.boxes:
        left, right = place.x - place.width / 2, place.x + place.width / 2
        top, bottom = place.y - place.height / 2, place.y + place.height / 2
        areas[place.box.id] = (left, right, top, bottom)
        assert left >= -1e-6
        assert right <= plan.width + 1e-6
        assert top >= -1e-6
        assert bottom <= plan.height + 1e-6
        if place.inside is not None:
            shift_x, shift_y = place.inside_at
            assert shift_x >= 0
            assert shift_x + place.inside.width <= place.width + 1e-6
            assert shift_y + place.inside.height <= place.height + 1e-6
            check(place.inside)
    for (_, a), (_, b) in itertools.combinations(areas.items(), 2):
        assert a[1] <= b[0] or b[1] <= a[0] or a[3] <= b[2] or b[3] <= a[2]
    for route in plan.routes:
        check_route(route, areas, plan)


def check_route(route, areas, plan):
    for id_, (x, y) in (
        (route.edge.source, route.way.points[0]),
        (route.edge.target, route.way.points[-1]),
    ):
        if id_ in areas:
            left, right, top, bottom = areas[id_]
            assert left - 1e-6 <= x <= right + 1e-6
            assert top - 1e-6 <= y <= bottom + 1e-6
        else:
            assert y in (0.0, pytest.approx(plan.height))
    ends = {route.edge.source, route.edge.target}
    for (x0, y0), (x1, y1) in itertools.pairwise(route.way.points):
        # Swings lie in the gaps between rows, where there are no boxes.
        for id_, (left, right, top, bottom) in areas.items():
            inside = max(top, min(y0, y1)) < min(bottom, max(y0, y1)) - 1e-6
            if inside and id_ not in ends and not route.way.arc:
                assert x0 == x1
                assert not left < x0 < right, (route.edge, id_)


@given(diagrams())
@settings(max_examples=60)
def test_boxes_lie_apart_and_edges_pass_between_them(diagram):
    check(layout(diagram))


@pytest.mark.slow
@given(diagrams())
@settings(max_examples=3000)
def test_boxes_lie_apart_in_very_many_diagrams(diagram):
    check(layout(diagram))


@each_row("depth", [1, 2, 9])
def test_every_kind_of_node_finds_its_place_open_and_closed(depth):
    check(placed(everything(), depth))


def test_the_same_graph_is_drawn_the_same():
    assert everything().svg(depth=9) == everything().svg(depth=9)


def test_a_chain_is_a_straight_line():
    plan = placed(chain(30))
    assert len({round(place.x, 6) for place in plan.boxes}) == 1
    heights = [place.y for place in plan.boxes]
    assert heights == sorted(heights)
    for route in plan.routes:
        assert len({round(x, 6) for x, _ in route.way.points}) == 1


def test_a_residual_tower_is_a_straight_line_with_bows_on_one_side():
    plan = placed(tower(6))
    trunk = {round(place.x, 6) for place in plan.boxes}
    assert len(trunk) == 1
    (middle,) = trunk
    bows = [route for route in plan.routes if any(abs(x - middle) > 1 for x, _ in route.way.points)]
    assert len(bows) == 6
    assert len({x > middle for bow in bows for x, _ in bow.way.points if abs(x - middle) > 1}) == 1


def test_branches_of_equal_width_stand_symmetrically():
    boxes = [box(0, 0), box(1, 1), box(2, 1), box(3, 2)]
    edges = [Edge("n0", "n1"), Edge("n0", "n2"), Edge("n1", "n3"), Edge("n2", "n3")]
    plan = layout(Diagram("", "", tuple(boxes), tuple(edges)))
    top, left, right, bottom = (place.x for place in plan.boxes)
    assert top == pytest.approx(bottom) == pytest.approx((left + right) / 2)
    assert left < right


def test_crossings_that_can_be_avoided_are_avoided():
    boxes = [box(n, n // 4) for n in range(8)]
    pairs = [(0, 6), (1, 7), (2, 4), (3, 5)]
    edges = [Edge(f"n{a}", f"n{b}") for a, b in pairs]
    plan = layout(Diagram("", "", tuple(boxes), tuple(edges)))
    for (a, b), (c, d) in itertools.combinations(pairs, 2):
        upper = plan.boxes[a].x - plan.boxes[c].x
        lower = plan.boxes[b].x - plan.boxes[d].x
        assert upper * lower > 0


def test_a_state_reader_stands_just_above_its_consumer_and_its_edge_comes_from_below():
    plan = placed(everything())
    places = {place.box.kind: place for place in plan.boxes}
    reader, consumer, before = places["state_read"], places["stateadd"], places["map"]
    assert before.y == reader.y < consumer.y
    (route,) = [route for route in plan.routes if route.edge.line is Line.STATE]
    assert route.way.upwards
    assert route.way.points[0][1] > consumer.y > route.way.points[-1][1] > reader.y


def test_labels_stand_apart():
    boxes = [box(n, 0) for n in range(5)] + [box(5, 1)]
    edges = [Edge(f"n{n}", "n5", Line.REFERENCE, f"reference {n}") for n in range(5)]
    plan = layout(Diagram("", "", tuple(boxes), tuple(edges)))
    spots = sorted(route.text_at[0] for route in plan.routes)
    assert min(b - a for a, b in itertools.pairwise(spots)) > 50
    assert len({route.text_at[1] for route in plan.routes}) == 1


def test_what_is_read_everywhere_is_drawn_as_one_trunk():
    boxes = [box(n, n) for n in range(12)]
    edges = [Edge(f"n{n}", f"n{n + 1}") for n in range(11)]
    edges += [Edge("n0", f"n{n}") for n in range(2, 12)]
    plan = layout(Diagram("", "", tuple(boxes), tuple(edges)))
    check(plan)
    longest = set(plan.routes[-1].way.points)
    for route in plan.routes[12:-1]:
        assert len(longest & set(route.way.points)) >= 3


@pytest.mark.slow
def test_very_many_long_edges_are_drawn_without_bends():
    count = 400
    boxes = [box(n, n) for n in range(count)]
    edges = [Edge(f"n{n}", f"n{n + 1}") for n in range(count - 1)]
    edges += [Edge(f"n{n}", f"n{count - 1}") for n in range(count - 2)]
    plan = layout(Diagram("", "", tuple(boxes), tuple(edges)))
    bends = [len(route.way.points) // 2 - 2 for route in plan.routes]
    assert 0 < sum(bends) <= 20_000 + 10 * count
    longest = plan.routes[count - 1]
    assert (longest.edge.source, longest.edge.target) == ("n0", f"n{count - 1}")
    assert bends[count - 1] == 0
    assert longest.way.points[-1][1] - longest.way.points[0][1] > 0.9 * plan.height


def test_an_empty_diagram_takes_no_room():
    plan = layout(Diagram("", "", (), ()))
    assert (plan.width, plan.height, plan.boxes, plan.routes) == (0.0, 0.0, (), ())
