"""What is measured: programs that read a job as JSON and print one JSON line for every part of it."""
