"""Drawing of graphs: a graph becomes a diagram (values), and a diagram becomes text or an image.

``describe`` reads the graph, ``opening`` closes what is not asked for; ``dot`` writes Graphviz
source, ``svg`` draws what ``layout`` has placed (layers, their order, coordinates, routes).
"""
