// Main actions: cards that are played, units that advance, attacks that are declared: actions.py.

#pragma once

#include <algorithm>

#include "draws.h"
#include "masks.h"

// An action of the player to move. `place`: the body that `second` means as a target, 0-3, or 4 of a
// champion; `enemy`: 1 if that is the enemy's.
struct Choice {
    int type, first, second, place, enemy;
};

static inline Choice read_choice(const int64_t* action) {
    const int second = action[2];
    const bool champion = second >= OWN_CHAMPION;
    return {(int)action[0], (int)action[1], second,
            champion ? CHAMPION_PLACE : second & (FRONT - 1),
            champion ? second == ENEMY_CHAMPION : second >> 2 & 1};
}

// The effect that happens now, and whether a unit's effect waits for its target.
struct Played {
    int effect;
    bool waits;
};

// Put a played unit into its slot, or move one that advances.
static inline void place_units(Side& own, const Choice& choice, int card) {
    const int slot = choice.second & (FRONT - 1), from_slot = choice.first & (FRONT - 1);
    if (choice.type == action::PLAY_FRONT) {
        own.id[slot] = card;
        own.fresh[slot] = 1;
    } else if (choice.type == action::PLAY_BACK) {
        own.back[slot] = card;
        own.back_fresh[slot] = 1;
    } else if (choice.type == action::ADVANCE) {
        own.id[slot] = own.back[from_slot];
        own.fresh[slot] = own.back_fresh[from_slot];
        own.back[from_slot] = own.back_fresh[from_slot] = 0;
        own.strength[slot] += ADVANCE_STRENGTH;
        own.advanced = 1;
    }
}

// Play a card, advance a unit, or use the spark.
static inline Played play_cards(const Facts& facts, Position& p, const Choice& choice) {
    Side& own = p.sides[0];
    const bool to_front = choice.type == action::PLAY_FRONT;
    const bool unit = to_front || choice.type == action::PLAY_BACK;
    const bool spell = choice.type == action::SPELL, gear = choice.type == action::GEAR;
    int16_t before[EFFECTS];  // so a unit is not a target of its own effect
    targets_of_effects(facts, p, before);

    const int card = unit || spell || gear ? remove_from_hand(own, choice.first) : 0;
    own.mana -= facts.cost[card];
    if (spell) discard(own, card);
    place_units(own, choice, card);
    if (gear) own.gear[choice.place] = card;
    if (choice.type == action::SPARK) {
        own.mana = std::min(own.mana + SPARK_MANA, HIGHEST_MANA);
        own.spark = 0;
    }

    const int effect = facts.effect[card];
    const bool draws = effect == effect::DRAW, waits = unit && !draws && before[effect];
    const int pending = p.effect * (choice.type == action::TARGET);
    p.effect = waits ? effect : effect::NONE;
    p.source = waits && to_front ? choice.second + 1 : 0;
    return {spell || draws ? effect : pending, waits};
}

// Tap an attacker, and remember who attacks whom.
static inline void declare_attacks(Position& p, const Choice& choice) {
    if (choice.type != action::ATTACK) return;
    p.sides[0].tapped[choice.first] = 1;
    p.attacker = choice.first + 1;
    p.target = choice.place + 1;
}

// Whether a response ends and the attack is fought out.
static inline bool fights(const Position& p, const Choice& choice) {
    const bool passes = choice.type == action::END && p.phase == phase::RESPONSE;
    return passes || choice.type == action::GUARD;
}
