"""Who owns which samples."""
