"""What people look at: tables, curves, lists."""
