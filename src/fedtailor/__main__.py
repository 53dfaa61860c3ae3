"""``python -m fedtailor`` is the command ``fedtailor``."""

from fedtailor.cli.main import main

main()
