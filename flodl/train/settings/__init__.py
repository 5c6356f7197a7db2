"""The settings of a training: methods of the builder, and their checks."""
