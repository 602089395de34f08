"""What members are trained on: a market or a game."""
