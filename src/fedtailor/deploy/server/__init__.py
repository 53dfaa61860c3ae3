"""The server of a deployed run."""
