"""Command-line interface of promotion, registry and trading."""
