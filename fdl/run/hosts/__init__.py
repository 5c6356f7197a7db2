"""Commands on machines that are reached with ssh, without a scheduler."""
