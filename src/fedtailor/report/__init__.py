"""What people look at: tables, lists and figures."""
