"""What a report says: read from run folders, computed and put into words, before any drawing."""
