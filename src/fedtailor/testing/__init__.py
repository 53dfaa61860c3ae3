"""The conformance suite, and the small world it plays in."""
