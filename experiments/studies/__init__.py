"""One-off studies behind statements in findings.md."""
