"""Tables of long runs, kills and races."""

from __future__ import annotations

from scripts.result_tables.results import load, origin, table


def registry_chaos() -> str:
    """Kills and races at the registry."""
    files = {title: load(f"registry_chaos_{title.lower()}") for title in ("SQLite", "PostgreSQL")}
    rows = []
    for title, found in files.items():
        kills, races = found["kills"], found["races"]
        figures = [
            *(kills["kills"], kills["promotions_and_rollbacks"], kills["interrupted_writes_seen"]),
            *(len(kills["failures"]), races["races"], len(races["failures"])),
        ]
        rows.append([title, *(f"{figure:,}" for figure in figures)])
    head = ["", "kills", "changes of the champion", "interrupted writes found", "invalid states"]
    machines = [found["machine"] for found in files.values()]
    return table([*head, "races", "races lost"], rows) + origin("registry_chaos_*", *machines)


def chaos() -> str:
    """Kills of workers."""
    found = load("chaos")
    titles = {
        "sqlite": "SQLite",
        "postgresql": "PostgreSQL",
        "sqlite, evicted": "SQLite, `--evict`",
        "sqlite, program": "SQLite, `--kind program`",
        "postgresql, program": "PostgreSQL, `--kind program`",
    }
    rows = []
    for key, title in titles.items():
        one = found[key]
        names = ("killed", "suspended", "retrained")
        rows.append([title, *(str(one[name]) for name in names), str(len(one["problems"]))])
    head = ["", "kills", "suspensions", "trials, each trained again", "problems found"]
    return table(head, rows) + origin("chaos", *(found[key]["machine"] for key in titles))


def trader_chaos() -> str:
    """Kills of a trader."""
    found = load("trader_chaos")
    titles = {
        "kills": "kills",
        "bars": "bars",
        "bars_decided_at": "bars with a decision",
        "orders": "orders",
        "orders_filled_in_part": "filled in part",
        "faults": "faults",
    }
    figures = found["figures"]
    row = [*(f"{figures[name]:,}" for name in titles), str(len(found["problems"]))]
    row.append(f"{figures['cash_difference']:.1g} USD")
    head = [*titles.values(), "lost, doubled or wrong", "cash: difference to the server's"]
    return table(head, [row]) + origin("trader_chaos", found["machine"])


def simulation() -> str:
    """Seeds of the simulations; figures of a run with a violation are not kept."""
    found = load("simulation")
    rows = []
    for what, one in found.items():
        faults = one["faults"]
        kills, others = faults["KILL"], sum(faults.values()) - faults["KILL"]
        rows.append([f"`{what}`", *(f"{n:,}" for n in (one["seeds"], kills, others)), "0"])
    head = ["", "seeds", "kills", "other faults and delays", "violations"]
    return table(head, rows) + origin("simulation", *(one["machine"] for one in found.values()))


def trader_tracking() -> str:
    """A live trader against the simulator."""
    found = load("trader_tracking")
    figures, tracking = found["figures"], found["figures"]["tracking"]
    row = [
        *(f"{figures['bars']:,}", f"{figures['orders']:,}"),
        *(f"{figures[name]:+.4%}" for name in ("account_return", "simulator_return")),
        f"{tracking['error']:.4%} a year",
        f"{tracking['worst']:.1g}",
        *(
            f"{figures[name]:.1g}"
            for name in ("cash_difference", "simulator_against_canonical_score")
        ),
    ]
    head = [
        *("bars", "orders", "account", "its shadow", "tracking error", "largest error of a bar"),
        "cash: difference to the server's",
        "shadow: difference to the canonical score",
    ]
    return table(head, [row]) + origin("trader_tracking", found["machine"])


def soak() -> str:
    """One worker and one study with many trials."""
    found = load("soak")
    spent, samples = found["ask_and_tell_cpu_ms"], found["samples"]
    row = [
        f"{found['trials']:,}",
        *(f"{spent[part]:.0f} ms" for part in ("first", "last")),
        f"{found['mib_per_100_trials']:.1f} MiB",
        f"{samples[-1]['resident_mib']:.0f} MiB",
    ]
    head = ["trials", "database work of a trial, first tenth", "last tenth"]
    head += ["growth of the resident set per 100 trials", "at the end"]
    return table(head, [row]) + origin("soak", found["machine"])
