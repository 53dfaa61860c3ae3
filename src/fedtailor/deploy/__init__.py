"""Out of one machine: sites, servers and keys."""
