"""Filters that an option of their own switches on, because they need its values."""
