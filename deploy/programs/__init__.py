"""Promotion of programs' files: candidates, rules, gate, report, bundle."""
