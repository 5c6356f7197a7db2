"""The fields of a configuration: how they are read, checked and written."""
