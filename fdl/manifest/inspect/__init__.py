"""Values of a manifest as a user asks for them: where each is written, and how to write another."""
