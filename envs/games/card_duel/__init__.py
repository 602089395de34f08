"""A card duel: two players with hidden hands, in turns.

- Data: `cards` and decks, `constants`, `tables` (the cards as tensors), `layout` (a position).
- Rules: `game` (in words, and as a `TensorGame`), `rules` (a decision), and its parts `actions`,
  `hits`, `turns`, `draws`; `masks` (what is legal).
- Players: `observation` (what they see), `players`, `greedy`.
- For people: `describe` (a position in an error), `scene`, `words`, `picture`.
"""
