// Beginnings and ends of games and turns: turns.py.

#pragma once

#include <algorithm>

#include "draws.h"

constexpr int MOVE_UNIFORMS = OPENING_HAND + 1;

// The position at the mulligan of the first player. `uniforms`: the first player, then the draws of
// the first player and of the second.
static inline Position begin_game(const int8_t* const decks[2], const double* uniforms) {
    Position p = {};
    const int first = uniforms[0] >= 0.5;
    p.mover = p.starter = first;
    p.own_turn = 1;
    for (int side = 0; side < 2; side++) {
        Side& own = p.sides[side];
        std::copy(decks[side ^ first], decks[side ^ first] + DECK_SIZE, own.deck);
        own.left = DECK_SIZE;
        own.id[CHAMPION_PLACE] = CHAMPION;
        own.spark = side;
        for (int i = 0; i < OPENING_HAND; i++) draw(own, uniforms[1 + side * OPENING_HAND + i]);
    }
    return p;
}

// End the turn of side 0.
static inline void end_turn(Position& p) {
    Side& own = p.sides[0];
    for (Side& side : p.sides) {
        std::fill(side.damage, side.damage + FRONT, 0);
        std::fill(side.strength, side.strength + BODIES, 0);
    }
    std::fill(own.fresh, own.fresh + BODIES, 0);
    std::fill(own.back_fresh, own.back_fresh + BACK, 0);
    // Only the player whose turn it is has gear.
    for (int8_t& gear : own.gear) {
        if (gear) discard(own, gear);
        gear = 0;
    }
}

// Begin the turn of side 1. It has yet to draw.
static inline void begin_turn(Position& p) {
    Side& next = p.sides[1];
    for (int place = 0; place < BODIES; place++) {
        next.tapped[place] = next.stunned[place];
        next.stunned[place] = 0;
    }
    next.mana = next.max_mana = std::min(next.max_mana + 1, HIGHEST_MANA);
    next.advanced = 0;
}

// Draw the cards of each side, of side 1 at most one; set which sides drew from an empty deck.
// `uniforms`: draws of side 0, then one of side 1.
static inline void draw_cards(Position& p, const int* cards, const double* uniforms, bool* empty) {
    for (int i = 0; i < std::min(cards[0], OPENING_HAND); i++)
        empty[0] |= draw(p.sides[0], uniforms[i]);
    if (cards[1] > 0) empty[1] |= draw(p.sides[1], uniforms[MOVE_UNIFORMS - 1]);
}
