"""One file a data set."""
