"""How it is measured: runs programs, keeps and compares their results, writes the document."""
