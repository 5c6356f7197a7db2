"""Settings of ranks, the launcher of a process, and the group that the ranks form."""
