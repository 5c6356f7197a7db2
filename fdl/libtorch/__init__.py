"""The installed libtorch variants of a project: ``libtorch/KIND/NAME`` under its root."""
