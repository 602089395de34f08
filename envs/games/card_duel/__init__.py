"""A card duel: two players with hidden hands, in turns."""
