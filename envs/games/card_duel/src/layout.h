// A position of the duel and the facts of cards, as the Python files beside this folder have them.
//
// Every function here and in the other headers computes one game. Names and order are those of the
// Python file of the same name, which computes all games at once. Tests compare the sizes, the names
// and every bit of the results.

#pragma once

#include <cstdint>

// constants.py
constexpr int HEALTH = 20;
constexpr int HAND = 10;
constexpr int OPENING_HAND = 5;
constexpr int FRONT = 4;
constexpr int BACK = 4;
constexpr int HIGHEST_MANA = 8;
constexpr int CHEAP = 3;
constexpr int DECISIONS = 300;
constexpr int DAMAGE = 2;
constexpr int HEALING = 3;
constexpr int STRENGTH = 2;
constexpr int DRAWN = 2;
constexpr int ADVANCE_STRENGTH = 1;
constexpr int SPARK_MANA = 2;
constexpr int TYPES = 11;
constexpr int CHOICES = 10;
constexpr int OWN_CHAMPION = 8;
constexpr int ENEMY_CHAMPION = 9;

namespace action {
enum Action { END, MULLIGAN, PLAY_FRONT, PLAY_BACK, GEAR, SPELL, ATTACK, ADVANCE, GUARD, TARGET, SPARK };
}
namespace phase {
enum Phase { MULLIGAN, MAIN, RESPONSE, TARGET };
}
constexpr int PHASES = 4;

// cards.py
constexpr int CARDS = 24;
constexpr int CHAMPION = 25;
constexpr int DECK_SIZE = 30;

namespace kind {
enum Kind { NONE, UNIT, GEAR, SPELL };
}
namespace keyword {
enum Keyword { CHARGE = 1, GUARD = 2, EVASIVE = 4, ARMOR = 8, STUN = 16, LAST_GIFT = 32 };
}
namespace effect {
enum Effect { NONE, DAMAGE, HEAL, STUN, RETURN, STRENGTHEN, DRAW };
}
constexpr int EFFECTS = 7;

// tables.py: one number per id, from 0 to CHAMPION.
struct Facts {
    const int8_t *kind, *cost, *attack, *health, *keywords, *effect, *quick;
};

// layout.py
constexpr int BODIES = 5;
constexpr int CHAMPION_PLACE = 4;

struct Side {
    int8_t deck[DECK_SIZE], left, hand[HAND], held;
    int8_t id[BODIES], damage[BODIES], strength[BODIES];
    int8_t tapped[BODIES], stunned[BODIES], fresh[BODIES], gear[BODIES];
    int8_t back[BACK], back_fresh[BACK], discard[CARDS + 1];
    int8_t mana, max_mana, spark, advanced;
};

struct Position {
    Side sides[2];
    int8_t phase, mover, own_turn, attacker, target, effect, source, starter;
};

constexpr int ROWS = sizeof(Position);  // it has no gaps: bytes only

static inline int keywords_of(const Facts& facts, const Side& side, int place) {
    return facts.keywords[side.id[place]] | facts.keywords[side.gear[place]];
}

static inline int attack_of(const Facts& facts, const Side& side, int place) {
    return facts.attack[side.id[place]] + facts.attack[side.gear[place]] + side.strength[place];
}
