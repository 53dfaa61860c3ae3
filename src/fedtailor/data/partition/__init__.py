"""Which client owns which samples, and which of these train, validate and test."""
