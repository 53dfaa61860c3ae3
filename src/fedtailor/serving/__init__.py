"""Kept models at work: predictions for files, and for requests over HTTP."""
