"""What a study writes down, and how it is read."""
