"""Promotion of players of games: bundle, panel, gate, replay."""
