"""Build libtorch from PyTorch's sources, for exactly the given GPU architectures.

``plan`` describes the work as a value. ``tools`` and ``back_end`` determine where the build can
run. ``execute`` runs it, and continues an earlier call.
"""
