"""The paper trader: sessions, brokers, feeds, accounts, risk limits, replay."""
