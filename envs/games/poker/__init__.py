"""Kuhn poker and Leduc poker: small games with hidden cards, whose exact equilibria are known."""
