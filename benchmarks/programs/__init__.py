"""Programs that are measured: they read a job as JSON and print a JSON line for each part."""
