"""The objective of studies on a game."""
