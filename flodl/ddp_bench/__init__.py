"""Train eight small models in every mode under the same rules, and compare them in a report.

Run ``python -m flodl.ddp_bench --help`` or ``fdl ddp-bench``.
"""
