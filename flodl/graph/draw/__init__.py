"""Draw graphs: a graph becomes a diagram (values), and a diagram becomes text or an image.

``describe`` reads the graph. ``opening`` closes the boxes that were not asked for. ``dot`` writes
Graphviz source. ``svg`` draws the result of ``layout`` (layers, their order, coordinates, routes).
"""
