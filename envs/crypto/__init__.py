"""The crypto market: environment, order rules, features and folds. Rooms: data and scoring."""
