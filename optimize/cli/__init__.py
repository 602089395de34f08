"""Command-line interface of the search."""
