"""Laser hockey: two players with rotating rackets and one puck."""
