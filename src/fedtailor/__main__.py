"""``python -m fedtailor`` is the command ``fedtailor``."""

from fedtailor.cli import main

main()
