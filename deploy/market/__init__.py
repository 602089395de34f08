"""MarketPromotion of trials that trade a market: candidates, gate, report, bundle, verification."""
