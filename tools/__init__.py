"""Programs for people who work on FedTailor itself."""
