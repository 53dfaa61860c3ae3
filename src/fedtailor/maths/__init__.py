"""Algorithms that methods call: clustering, matching, solvers, discrepancies. Nothing here knows of clients."""
