"""The version of this distribution. Imported on the warm path."""

__version__ = "0.1.0"
