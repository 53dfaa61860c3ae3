"""Algorithms that methods call; nothing here knows of clients."""
