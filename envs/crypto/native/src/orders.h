// One bar of trading: what `plan`, `fill`, `mark` and `charge` do, for WIDTH rows at a time.
//
// Everything between reading a row's state and writing it stays in registers and the first cache.
// Operations and their order are those of portfolio.py, which explains the rules.

#pragma once

#include "state.h"

constexpr double TINY = 1e-200;            // avoids 0/0
constexpr double SMALLEST_ORDER = 1e-8;    // quote units
constexpr double ROUNDING_NOISE = 1e-6;

// A group of rows that are computed together, one per lane.
struct Group {
    long first;                  // row
    int count;                   // 1 … WIDTH rows
    const double* prices[WIDTH]; // of the bar that follows the decision
    vec place;                   // of that bar
};

// Move a group's rows to the next bar. Places count backwards.
DEVICE static inline Group next_bar(const State& s, long first, int count) {
    Group group{first, count, {}, all(0.0)};
    const long wide = (s.holes ? 3 : 2) * s.assets;
    for (int i = 0; i < WIDTH; i++) {
        // Lanes without a row read the prices of the first one.
        const int64_t place = i < count ? --s.place[first + i] : s.place[first];
        group.prices[i] = s.prices_by_bar + place * wide;
        group.place[i] = (double)place;
    }
    return group;
}

// Orders of a group, one vector per asset; the counts are as in `record_of`. The vectors lie
// close together in memory: arrays of a fixed size would compete for the same places of the cache.
struct Orders {
    vec memory[9 * MOST_ASSETS];
    vec *wish;                     // actions
    vec *buy;                      // notional
    vec *sell;                     // fraction of the position, exactly 1 for the whole position
    vec *restart;                  // 1 for holding clocks that restart
    vec *flow, *equal_worth, *worth;  // to be summed over the assets
    vec *is_short, *size;          // with shorts: 1 for a short side; the position's value, no sign
    vec dropped, trades, unfilled;

    DEVICE explicit Orders(int assets) {
        vec* next = memory;
        vec** const arrays[] = {&wish, &buy, &sell, &restart, &flow, &equal_worth, &worth,
                                &is_short, &size};
        for (vec** array : arrays) {
            *array = next;
            next += assets;
        }
    }
};

// Partial sells down to increments, and buys to cents (`_round_part`).
DEVICE static inline void round_down(double increment, vec units, vec& buy, vec& sell) {
    if (!(increment > 0)) return;
    vec quantity = floor(sell * units / increment + ROUNDING_NOISE) * increment;
    vec fraction = no_more(quantity / no_less(units, all(TINY)), all(1.0));
    sell = sell < 1.0 ? fraction : sell;
    buy = floor(buy * 100.0 + ROUNDING_NOISE) / 100.0;
}

// Choose what is where the mask is above 0.
DEVICE static inline vec where(vec mask, vec yes, vec no) { return mask > 0.0 ? yes : no; }

// Turn the wish of one asset to the position's side (`_short_side`).
DEVICE static inline vec take_side(const State& s, const Group& group, Orders& o, int a) {
    const long r = group.first, at = a * s.stride + r;
    vec w = o.wish[a], units = load(s.units + at, group.count);
    vec worth = load(s.worth + at, group.count);
    vec sale = greater(all(0.0), w) * greater(load(s.short_allowed + r, group.count), all(0.0));
    vec flat = units == 0.0 ? sale : all(0.0);
    o.is_short[a] = units < 0.0 ? all(1.0) : flat;
    o.worth[a] = no_less(-worth, all(0.0));  // what is owed
    o.size[a] = magnitude(worth);
    return w * (1.0 - 2.0 * o.is_short[a]);
}

// Scale the orders that increase positions (`_limit_sides`).
DEVICE static inline void limit_buys(const State& s, const Group& group, Orders& o, vec V,
                                     vec money) {
    const int N = s.assets;
    for (int a = 0; a < N; a++) o.flow[a] = where(o.is_short[a], all(0.0), o.buy[a]);
    vec factor = money / no_less(sum(o.flow, N), all(TINY));
    factor = no_more(no_less(factor, all(0.0)), all(1.0));
    for (int a = 0; a < N; a++) {
        o.flow[a] = o.buy[a] = where(o.is_short[a], o.buy[a], o.buy[a] * factor);
        o.worth[a] = o.size[a];
    }
    vec room = load(s.leverage + group.first, group.count) * V - sum(o.worth, N);
    room = room * greater(V, load(s.bankrupt_value + group.first, group.count));
    factor = room / no_less(sum(o.flow, N), all(TINY));
    factor = no_more(no_less(factor, all(0.0)), all(1.0));
    for (int a = 0; a < N; a++) o.buy[a] = o.buy[a] * factor;
}

// Actions to orders.
template <bool SHORTS>
DEVICE static inline void plan(const State& s, const Group& group, Orders& o) {
    const long R = s.stride, r = group.first, wide = (s.holes ? 3 : 2) * s.assets;
    const int N = s.assets, count = group.count;
    vec V = load(s.total + R + r, count), cash = load(s.cash + r, count);
    vec per_buy = load(s.sizing + r, count) * V, per_sell = load(s.sizing + R + r, count) * V;
    vec limit = load(s.sizing + 2 * R + r, count) * V;
    vec reserve = load(s.sizing + 3 * R + r, count) * V;
    vec largest_of_row = all(0.0);

    for (int a = 0; a < N; a++) {
        const long at = a * R + r;
        vec w = o.wish[a], worth = load(s.worth + at, count);
        vec largest = larger_of(load(s.largest + at, count), magnitude(w));
        store(s.largest + at, count, largest);
        largest_of_row = larger_of(largest_of_row, largest);
        if (SHORTS) {
            w = take_side(s, group, o, a);
            worth = o.size[a];
        }

        // 0 <= buy <= max_position V - worth, and 0 <= sell <= worth.
        vec buy = no_less(smaller_of(w * per_buy, limit - worth), all(0.0));
        vec sell = no_less(smaller_of(w * per_sell, worth), all(0.0));
        // Forced exits: first trailing stops, then the holding rule.
        vec stopped = all(0.0);
        if (s.stops) {
            vec level = load(s.high + at, count) * load(s.stop_level + r, count);
            // The close of the decision's bar, which follows in the table.
            vec close = column(group.prices, wide + N + a);
            stopped = greater(level, close);
            if (SHORTS) {
                vec ceiling = load(s.high + at, count) * load(s.cover_level + r, count);
                vec above = greater(close, ceiling);
                stopped = load(s.units + at, count) < 0.0 ? above : stopped;
            }
            buy = buy - buy * stopped;
            sell = where(stopped, worth, sell);
        }
        if (s.holding_rule) {
            vec restart = at_least(load(s.held + at, count), load(s.max_holding_bars + r, count));
            restart = restart - restart * stopped;
            buy = buy - buy * restart;
            sell = where(restart, worth * load(s.max_holding_fraction + r, count), sell);
            o.restart[a] = restart;
        }
        o.buy[a] = o.flow[a] = buy;
        o.sell[a] = sell;
    }
    store(s.legal_steps + r, count,
          load(s.legal_steps + r, count) + at_least(all(1.0), largest_of_row));

    // One factor for all buys of a row: min(1, cash above the reserve / sum of buys).
    vec factor = all(1.0);
    if (SHORTS) {
        limit_buys(s, group, o, V, cash - sum(o.worth, N) - reserve);
    } else {
        factor = (cash - reserve) / no_less(sum(o.flow, N), all(TINY));
        factor = no_more(no_less(factor, all(0.0)), all(1.0));
    }

    o.dropped = all(0.0);
    for (int a = 0; a < N; a++) {
        const long at = a * R + r;
        vec buy = o.buy[a], sell = o.sell[a], worth = load(s.worth + at, count);
        if (SHORTS)
            worth = o.size[a];
        else
            buy = buy * factor;
        vec minimum = load(s.minimum + (s.minimums == 1 ? r : at), count);
        // A rest below the minimum is sold, too; a whole position is exempt from the minimum.
        vec base = larger_of(worth, minimum);
        vec whole = greater(sell, base - minimum);
        vec enough_buy = at_least(buy, minimum), enough_sell = at_least(sell, minimum);
        if (s.record) {
            vec small_buy = greater(buy, all(SMALLEST_ORDER));
            vec small_sell = greater(sell, all(SMALLEST_ORDER));
            small_sell = small_sell - small_sell * enough_sell;
            o.dropped += small_buy - small_buy * enough_buy;
            o.dropped += small_sell - small_sell * whole;
        }
        buy = buy * enough_buy;
        sell = larger_of(sell * enough_sell / base, whole);
        const vec notional = buy;
        const double increment = s.increment ? s.increment[a] : 0.0;
        vec units = load(s.units + at, count);
        round_down(increment, SHORTS ? magnitude(units) : units, buy, sell);
        if (SHORTS) {  // a short sale is an order of units, rounded like every sale
            vec sold = notional / column(group.prices, wide + N + a);
            if (increment > 0) sold = floor(sold / increment + ROUNDING_NOISE) * increment;
            buy = where(o.is_short[a], sold, buy);
        }
        o.buy[a] = buy;
        o.sell[a] = sell;
    }
}

// What a row's orders and the venue did in a bar.
struct Settled {
    vec spent, proceeds, cash, V, charges, gross;
};

// Remove the positions of a group: `closing`, a vector per asset, is 1 where.
DEVICE static inline void close_positions(const State& s, const Group& group, const vec* closing) {
    double* const position[] = {s.units, s.paid, s.held, s.high, s.worth};
    for (int a = 0; a < s.assets; a++) {
        const long at = a * s.stride + group.first;
        vec kept = 1.0 - closing[a];
        for (double* state : position)
            store(state + at, group.count, load(state + at, group.count) * kept);
    }
}

DEVICE static inline bool any(vec mask) {
    for (int i = 0; i < WIDTH; i++)
        if (mask[i] > 0) return true;
    return false;
}

// Charge for borrowing, and check the margin, at the close (`charge`).
DEVICE static inline void charge(const State& s, const Group& group, Orders& o, Settled& made) {
    const long R = s.stride, r = group.first;
    const int N = s.assets, count = group.count;
    auto worth_of = [&](int a) { return load(s.worth + a * R + r, count); };
    auto sum_worth = [&] {
        for (int a = 0; a < N; a++) o.worth[a] = worth_of(a);
        return sum(o.worth, N);
    };
    vec &cash = made.cash, worth = sum_worth();
    for (int a = 0; a < N; a++) o.size[a] = no_less(-worth_of(a), all(0.0));
    vec debt = sum(o.size, N), borrowed = debt + no_less(-cash, all(0.0));
    vec fee = borrowed * load(s.borrow_rate + r, count);
    cash = cash - fee;
    vec V = worth + cash, sizes = worth + (debt + debt);
    vec call = greater(load(s.maintenance + r, count) * sizes, V);
    // Close the positions of the rows where `rows` is 1, at the close.
    auto liquidate = [&](vec rows, bool in_holes) {
        vec spent = all(0.0), sold = all(0.0);
        if (any(rows)) {
            vec *closing = o.wish, *owed = o.size, *owned = o.flow;
            for (int a = 0; a < N; a++) {
                vec own = worth_of(a);
                closing[a] = own != 0.0 ? rows : all(0.0);
                if (s.holes && !in_holes)
                    closing[a] = closing[a] * column(group.prices, 2 * N + a);
                owed[a] = where(closing[a], no_less(-own, all(0.0)), all(0.0));
                owned[a] = where(closing[a], no_less(own, all(0.0)), all(0.0));
                o.trades += closing[a];
            }
            close_positions(s, group, closing);
            spent = sum(owed, N) / load(s.buy_rate + r, count), sold = sum(owned, N);
        }
        // Signs of 0 must not depend on the other rows of a group.
        spent = spent + 0.0;
        sold = sold + 0.0;
        cash = cash + sold * load(s.sell_rate + r, count) - spent;
        made.spent += spent;
        made.proceeds += sold;
        V = sum_worth() + cash;
    };
    liquidate(call, false);
    vec least = load(s.bankrupt_value + r, count), bankrupt = greater(least, V);
    store(s.bankrupt + r, count, bankrupt);
    made.charges = fee;
    if (any(bankrupt)) {
        liquidate(bankrupt, true);
        made.charges = fee - where(bankrupt, least - V, all(0.0));
        cash = where(bankrupt, least, cash);
        V = where(bankrupt, least, V);
    }
    for (int a = 0; a < N; a++) o.size[a] = magnitude(worth_of(a));
    made.gross = sum(o.size, N);
    made.V = V;
}

// log(1 + x), or x where that is left to torch.
#if defined(ON_GPU)
DEVICE static inline bool knows_logarithm(const State&) { return true; }
DEVICE static inline vec logarithm(const State&, vec x) { return log1p(x.x); }
#else
static inline bool knows_logarithm(const State& s) { return s.log1p; }
static inline vec logarithm(const State& s, vec x) { return s.log1p ? s.log1p(x) : x; }
#endif

// Fill the orders at the open, value at the close, settle the cash; growth of E and V.
template <bool SHORTS>
DEVICE static inline void fill(const State& s, const Group& group, Orders& o) {
    const long R = s.stride, r = group.first;
    const int N = s.assets, count = group.count;
    vec buy_rate = load(s.buy_rate + r, count), sell_rate = load(s.sell_rate + r, count);
    o.trades = o.unfilled = all(0.0);

    for (int a = 0; a < N; a++) {
        const long at = a * R + r;
        vec open = column(group.prices, a), close = column(group.prices, N + a);
        vec buy = o.buy[a], sell = o.sell[a], tradable = all(1.0);
        if (s.holes) {  // orders that meet a hole expire
            tradable = column(group.prices, 2 * N + a);
            vec buys = greater(buy, all(0.0)), sells = greater(sell, all(0.0));
            o.unfilled += (buys - buys * tradable) + (sells - sells * tradable);
            buy = buy * tradable;
            sell = sell * tradable;
        }
        o.trades += greater(buy, all(0.0)) + greater(sell, all(0.0));
        o.buy[a] = buy;

        // units (1 - sell) + buy / open * buy_rate, and paid (1 - sell) + buy.
        vec units = load(s.units + at, count), keep = 1.0 - sell;
        vec bought = buy / open * buy_rate, cost = buy;
        o.flow[a] = sell * units * open;
        units = units * keep;
        vec still_open = units != 0.0 ? all(1.0) : all(0.0);
        if (SHORTS) {
            vec is_short = o.is_short[a], proceeds = buy * open;
            bought = where(is_short, -buy, bought);
            cost = where(is_short, -(proceeds * sell_rate), buy);
            o.buy[a] = where(is_short, -o.flow[a] / buy_rate, buy);
            o.flow[a] = where(is_short, proceeds, o.flow[a]);
        }
        units = units + bought;
        store(s.units + at, count, units);
        store(s.paid + at, count, load(s.paid + at, count) * keep + cost);

        // The clock: held + 1 if still open, else 0.
        vec held = still_open + load(s.held + at, count) * still_open;
        if (s.holding_rule) held = held - held * (o.restart[a] * tradable);
        store(s.held + at, count, held);
        if (s.stops) {
            vec high = load(s.high + at, count) * still_open, highest = larger_of(high, close);
            if (SHORTS) {
                vec lowest = where(high, smaller_of(high, close), close);
                highest = units < 0.0 ? lowest : highest;
            }
            store(s.high + at, count, highest);
        }

        vec equal_worth = load(s.equal_units + at, count) * close, worth = units * close;
        if (s.buys_at) {  // the benchmark's cash for what it has not bought yet
            vec bought = at_least(load(s.buys_at + at, count), group.place);
            equal_worth = mixed(load(s.waiting + at, count), equal_worth, bought);
        }
        store(s.equal_worth + at, count, equal_worth);
        store(s.worth + at, count, worth);
        o.equal_worth[a] = equal_worth;
        o.worth[a] = worth;
    }

    // cash' = max(0, cash - spent) + sold (1 - slippage) (1 - fee); rounding could overspend.
    vec spent = sum(o.buy, N), proceeds = sum(o.flow, N);
    vec left = load(s.cash + r, count) - spent, cash = no_less(left, all(0.0));
    if (SHORTS) cash = where(load(s.short_allowed + r, count), left, cash);
    cash = cash + proceeds * sell_rate;
    vec E = sum(o.equal_worth, N), V, charges, gross;
    if (SHORTS) {
        Settled made{spent, proceeds, cash, V = all(0.0), all(0.0), all(0.0)};
        charge(s, group, o, made);
        spent = made.spent, proceeds = made.proceeds, cash = made.cash;
        V = made.V, charges = made.charges, gross = made.gross;
    } else {
        V = sum(o.worth, N) + cash;
    }
    store(s.cash + r, count, cash);
    vec E_before = load(s.total + r, count), V_before = load(s.total + R + r, count);
    vec b = (E - E_before) / E_before, x = (V - V_before) / V_before;
    store(s.growth + r, count, logarithm(s, b));
    store(s.growth + R + r, count, logarithm(s, x));
    store(s.total + r, count, E);
    store(s.total + R + r, count, V);
    if (s.record) {
        const vec figures[] = {spent, proceeds, E, V, cash, o.dropped, o.trades, o.unfilled};
        for (int k = 0; k < 8; k++) store(s.record + k * R + r, count, figures[k]);
        if (SHORTS) {
            store(s.record + 8 * R + r, count, charges);
            store(s.record + 9 * R + r, count, gross);
        }
    }
}
