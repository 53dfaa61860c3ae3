"""Comparisons of methods on real data, what came out of them, and studies of single questions."""
