"""What one training and many ranks share: settings, the launch environment, groups of ranks."""
