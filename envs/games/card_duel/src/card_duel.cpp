// The rules of the card duel, called by envs/games/card_duel/native.py through ctypes.

#include "actions.h"
#include "hits.h"
#include "layout.h"
#include "masks.h"
#include "observation.h"
#include "pool.h"
#include "turns.h"

// What does not change from step to step. G games.
struct Duels {
    int64_t games;
    int64_t columns;                // of an observation
    Facts facts;
    const int8_t* decks;            // (preset_decks + random_decks, DECK_SIZE)
    int64_t preset_decks, random_decks;
    const double *preset, *first_preset, *presets, *mirrored;  // (G,), `CardDuel.numeric`
};

struct Decided {
    bool lost[2], turn;
};

// Play a legal action: rules.py. `uniforms`: (MOVE_UNIFORMS,), for draws.
static Decided decide(const Facts& facts, Position& p, const int64_t* action,
                      const double* uniforms) {
    const Choice choice = read_choice(action);
    const bool mulligan = choice.type == action::MULLIGAN, attack = choice.type == action::ATTACK;
    const bool mulligans = p.phase == phase::MULLIGAN, response = p.phase == phase::RESPONSE;
    const bool last_mulligan = mulligans && !p.own_turn, first_mulligan = mulligans && p.own_turn;
    const int seat = p.mover;

    const Played played = play_cards(facts, p, choice);
    declare_attacks(p, choice);
    int cards[2] = {};
    hit(facts, p, choice, played.effect, cards);
    const bool under_attack = response && !fights(p, choice) && fighters_live(p);
    if (mulligan) put_hand_back(p.sides[0]);
    const bool turn_ends = choice.type == action::END && p.phase == phase::MAIN;
    if (turn_ends) end_turn(p);
    const bool turn = turn_ends || last_mulligan;
    if (turn) begin_turn(p);
    cards[0] += OPENING_HAND * mulligan;
    cards[1] += turn_ends;  // the very first turn begins without a draw
    bool lost[2] = {};
    draw_cards(p, cards, uniforms, lost);
    for (int side = 0; side < 2; side++)
        lost[side] |= p.sides[side].damage[CHAMPION_PLACE] >= HEALTH;

    const bool pending = attack || under_attack;
    if (!pending) p.attacker = p.target = 0;
    p.phase = first_mulligan ? phase::MULLIGAN
              : pending      ? phase::RESPONSE
              : played.waits ? phase::TARGET
                             : phase::MAIN;
    p.own_turn = !(first_mulligan || pending);
    if (mulligans || attack || response != under_attack || turn_ends) {
        p.mover ^= 1;
        std::swap(p.sides[0], p.sides[1]);
    }
    return {{lost[seat], lost[1 - seat]}, turn};
}

// The number of a deck: `CardDuel._deck`.
static int64_t deck_number(const Duels& duels, long game, double uniform) {
    const double share = duels.preset[game];
    const double drawn =
        uniform < share
            ? duels.first_preset[game] + uniform / share * duels.presets[game]
            : duels.preset_decks + (uniform - share) / (1.0 - share) * duels.random_decks;
    const double last = duels.preset_decks + duels.random_decks - 1;
    return (int64_t)std::min(drawn, last);  // below the end in spite of rounding
}

// A new game: `CardDuel.start`.
static Position start(const Duels& duels, long game, const double* uniforms) {
    const int64_t own = deck_number(duels, game, uniforms[0]);
    const int64_t other = duels.mirrored[game] > 0 ? own : deck_number(duels, game, uniforms[1]);
    const int8_t* decks[] = {duels.decks + own * DECK_SIZE, duels.decks + other * DECK_SIZE};
    return begin_game(decks, uniforms + 2);
}

// Compute games 0 … G - 1 on several threads.
template <class One>
static void for_games(const Duels& duels, int64_t threads, const One& one) {
    constexpr long SIZE = 256;  // games of a task: fewer are done sooner than a thread wakes up
    Pool::get().run((duels.games + SIZE - 1) / SIZE, threads, [&](long task, int) {
        const long end = std::min<long>((task + 1) * SIZE, duels.games);
        for (long game = task * SIZE; game < end; game++) one(game);
    });
}

// Of a state, each function gets the tensors that it needs: `cells`, (G, ROWS), a position each,
// `decisions` and `turns`, (G,).
extern "C" {

// `CardDuel.move`. `action`: (G, 3), legal. `uniforms`: (G, MOVE_UNIFORMS), `stride` numbers from
// one game to the next. `rewards`: (G, 2). `over`: (G,).
void sweepd_card_duel_move(const Duels* duels, const Position* cells, const int16_t* decisions,
                           const int16_t* turns, const int64_t* action, const double* uniforms,
                           int64_t stride, Position* moved, int16_t* moved_decisions,
                           int16_t* moved_turns, float* rewards, uint8_t* over, int64_t threads) {
    for_games(*duels, threads, [&](long game) {
        Position& p = moved[game] = cells[game];
        const auto [lost, turn] =
            decide(duels->facts, p, action + 3 * game, uniforms + stride * game);
        moved_decisions[game] = decisions[game] + 1;
        moved_turns[game] = turns[game] + turn;
        rewards[2 * game] = (float)(lost[1] - lost[0]);
        rewards[2 * game + 1] = -rewards[2 * game];
        over[game] = lost[0] || lost[1] || moved_decisions[game] >= DECISIONS;
    });
}

// `BatchedGame.restart`. `ended`: (G,). `uniforms`: (G, those of a start), as of a move.
void sweepd_card_duel_restart(const Duels* duels, const Position* cells, const int16_t* decisions,
                              const int16_t* turns, const uint8_t* ended, const double* uniforms,
                              int64_t stride, Position* begun, int16_t* begun_decisions,
                              int16_t* begun_turns, int64_t threads) {
    for_games(*duels, threads, [&](long game) {
        const bool begins = ended[game];
        begun[game] = begins ? start(*duels, game, uniforms + stride * game) : cells[game];
        begun_decisions[game] = begins ? 0 : decisions[game];
        begun_turns[game] = begins ? 0 : turns[game];
    });
}

// `CardDuel.see`. `seat`: (G,). `obs`: (G, columns).
void sweepd_card_duel_see(const Duels* duels, const Position* cells, const int16_t* decisions,
                          const int64_t* seat, uint8_t* obs, int64_t threads) {
    for_games(*duels, threads, [&](long game) {
        observe(duels->facts, cells[game], decisions[game], seat[game],
                obs + duels->columns * game);
    });
}

// `CardDuel.legal`. `legal`: (G,).
void sweepd_card_duel_legal(const Duels* duels, const Position* cells, Legal* legal,
                            int64_t threads) {
    for_games(*duels, threads, [&](long game) {
        legal[game] = legal_actions(duels->facts, cells[game]);
    });
}

// `CardDuel.mask`. `chosen`: (G, count), of any options. `mask`: (G, options).
void sweepd_card_duel_mask(const Duels* duels, const Legal* legal, const int64_t* chosen,
                           int64_t count, uint8_t* mask, int64_t threads) {
    for_games(*duels, threads, [&](long game) {
        const int64_t* own = chosen + count * game;
        if (count == 0)
            as_bools<TYPES>(type_mask(legal[game]), mask + TYPES * game);
        else if (count == 1)
            as_bools<CHOICES>(first_mask(legal[game], own[0]), mask + CHOICES * game);
        else
            as_bools<CHOICES>(second_mask(legal[game], own[0], own[1]), mask + CHOICES * game);
    });
}

// Whether all actions, (G, 3), are legal, and all games going, (G,).
int64_t sweepd_card_duel_all_legal(const Duels* duels, const Legal* legal, const int64_t* action,
                                   const uint8_t* going) {
    for (long game = 0; game < duels->games; game++)
        if (!going[game] || !is_legal(legal[game], action + 3 * game)) return 0;
    return 1;
}

}
