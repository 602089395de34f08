"""Games as vectorized environments.

- The base class of games as tensors: `batched`, with `batched_rules` (what a game implements) and
  `drawn_ahead` (random numbers).
- Two seats: `tensor_game`, with what a game implements in `rules`; `rule_checks` (what it declares),
  `legality` (masked actions), `seating` (rows, in turns too), `opponents` (who plays), `pairings`
  (two players against each other).
- What studies and commands use: `registry` (games by name), `game`, `play` (episodes of a policy),
  `curriculum` and `phase_files` (phases of a training), `tally` (finished games and their returns),
  `scaling` (of observations), `random_check` (for `sweepd doctor`), `game_tree` (exact values).
- Showing: `render`, `turns_view`, `words`.
- Games: `cartpole`, `bucket_brigade`, `hockey`, `card_duel`, `poker`.
"""
