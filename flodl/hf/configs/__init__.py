"""The fields of a configuration: how each is read, checked and written."""
