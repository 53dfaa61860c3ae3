"""The round loop and what it uses."""
