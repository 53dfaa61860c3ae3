"""What applies to any method between client and server."""
