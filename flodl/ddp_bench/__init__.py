"""Eight small models, trained in every mode under the same rules, and a report that compares them.

``python -m flodl.ddp_bench --help``, or ``fdl ddp-bench``.
"""
