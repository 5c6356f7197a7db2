"""What heads predict from texts: labels, entities, answers, masked tokens."""
