"""A site of a deployed run."""
