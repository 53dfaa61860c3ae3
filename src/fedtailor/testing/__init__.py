"""The conformance suite, and the small federation it runs in."""
