"""Files on disk: written completely or not at all."""
