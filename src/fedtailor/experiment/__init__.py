"""From options to all that a run needs, and the folder it leaves behind."""
