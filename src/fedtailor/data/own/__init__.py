"""A user's own data."""
