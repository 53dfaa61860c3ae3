"""The command fedtailor."""
