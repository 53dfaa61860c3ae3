"""Audits: what a curious server learns about one client from what really left it."""
