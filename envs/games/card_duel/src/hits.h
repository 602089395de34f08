// Combat and effects: hits.py.

#pragma once

#include <algorithm>

#include "actions.h"
#include "draws.h"

// A body that may be hit, as it is before.
struct Struck {
    int place, id, gear, keywords, attack;
};

// Fight out attacks and apply effects. `cards`: of each side, the cards that it draws; added to.
static inline void hit(const Facts& facts, Position& p, const Choice& choice, int effect,
                       int* cards) {
    const bool fight = fights(p, choice), guard = choice.type == action::GUARD;
    if (!fight && effect == effect::NONE) return;
    const int defender = guard ? choice.first : p.target - 1;
    const int places[2] = {fight ? defender : choice.place, fight ? p.attacker - 1 : choice.place};
    Struck bodies[2];
    for (int side = 0; side < 2; side++) {
        const Side& own = p.sides[side];
        const int place = places[side];
        bodies[side] = {place, own.id[place], own.gear[place], keywords_of(facts, own, place),
                        attack_of(facts, own, place)};
    }
    for (int side = 0; side < 2; side++) {
        Side& own = p.sides[side];
        const Struck &body = bodies[side], &other = bodies[1 - side];
        const int place = body.place, aimed = choice.enemy == side;
        int8_t& damage = own.damage[place];

        const int blows = other.attack * fight + aimed * DAMAGE * (effect == effect::DAMAGE);
        const int dealt = std::max(blows - !!(body.keywords & keyword::ARMOR), 0);
        const bool hurts = dealt > 0 && fight && other.keywords & keyword::STUN;
        const bool stuns = hurts || (aimed && effect == effect::STUN);
        const int healed = std::min<int>(damage, aimed * HEALING * (effect == effect::HEAL));
        damage += dealt - healed;
        own.strength[place] += aimed * STRENGTH * (effect == effect::STRENGTHEN);
        own.tapped[place] |= stuns;
        own.stunned[place] |= stuns;

        const bool unit = body.id != 0 && body.id != CHAMPION;
        const bool dies = unit && damage >= facts.health[body.id];
        const bool returns = aimed && effect == effect::RETURN;
        if (dies || returns) {
            own.id[place] = damage = own.strength[place] = own.tapped[place] = 0;
            own.stunned[place] = own.fresh[place] = own.gear[place] = 0;
            if (body.gear) discard(own, body.gear);
        }
        if (dies) discard(own, body.id);
        if (returns) take(own, body.id);
        cards[side] += dies && body.keywords & keyword::LAST_GIFT;
    }
    cards[0] += DRAWN * (effect == effect::DRAW);
}

// Whether both attacker and target of the pending attack are there.
static inline bool fighters_live(const Position& p) {
    return p.sides[1].id[std::max(p.attacker - 1, 0)] && p.sides[0].id[std::max(p.target - 1, 0)];
}
