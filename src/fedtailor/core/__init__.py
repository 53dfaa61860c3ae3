"""What everything else is made of: trees of tensors, random numbers, their wire format, errors."""
