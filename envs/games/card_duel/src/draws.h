// Cards that move between deck, hand and discard: draws.py.

#pragma once

#include "layout.h"

// Put a card onto the discard.
static inline void discard(Side& side, int card) { side.discard[card]++; }

// Put a card into the hand, or onto the discard where the hand is full.
static inline void take(Side& side, int card) {
    if (side.held < HAND)
        side.hand[side.held++] = card;
    else
        discard(side, card);
}

// Draw a random card; return whether the deck was empty. The last card takes the drawn one's place.
static inline bool draw(Side& side, double uniform) {
    if (!side.left) return true;
    int8_t& place = side.deck[(int64_t)(uniform * side.left)];
    const int card = place;
    side.left--;
    place = side.deck[side.left];
    side.deck[side.left] = 0;
    take(side, card);
    return false;
}

// Take a card out of the hand, and return it. Later cards move up.
static inline int remove_from_hand(Side& side, int index) {
    const int card = side.hand[index];
    for (int i = index; i < HAND - 1; i++) side.hand[i] = side.hand[i + 1];
    side.hand[HAND - 1] = 0;
    side.held--;
    return card;
}

// Return the opening hand to the deck.
static inline void put_hand_back(Side& side) {
    for (int i = 0; i < OPENING_HAND; i++) {
        side.deck[DECK_SIZE - OPENING_HAND + i] = side.hand[i];
        side.hand[i] = 0;
    }
    side.left += OPENING_HAND;
    side.held -= OPENING_HAND;
}
