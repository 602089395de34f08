"""Brokers that a paper trader can send orders to. None of them can reach real money."""
