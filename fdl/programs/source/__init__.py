"""What a program declares, read from its source. Nothing is imported and nothing is run.

``read`` follows the statements of the script as far as they declare arguments (``interpret``).
Values that only the running program knows are marked as computed. Each reader knows one library.
"""

from __future__ import annotations

from fdl.programs.source.program import read as read

__all__ = ["read"]
