"""What ranks average, how it is weighted, and which way it travels."""
