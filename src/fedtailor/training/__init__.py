"""Local training of one client: its data, its network, its optimiser."""
