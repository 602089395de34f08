"""The count of evaluations on hold-outs and panels, which decides the gate's significance level.

Each further evaluation on the same unseen data makes it likelier that some candidate passes by
luck, so the gate asks for more significance each time
(`sweepd.deploy.promotion.bootstrap.gate_level`). Evaluations are counted in the registry, across
studies, and before they are made, so that a crash does not make one free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, func, select

from sweepd.deploy.registry.bundle_files import GAME, MARKET, Kind
from sweepd.deploy.registry.database import RegistryDatabase, utc_now
from sweepd.deploy.registry.records import EVALUATIONS, CountedEvaluation, EvaluationRecord


class EvaluationLog:
    """Records and counts the evaluations of a registry."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database

    def record_holdout(
        self,
        tickers: Sequence[str],
        timeframe: str,
        first: int,
        last: int,
        *,
        members_sha256: str,
        study: str,
        study_uid: str,
        trial: int,
    ) -> CountedEvaluation:
        """Count an evaluation on hold-out bars before it is made.

        Evaluations on overlapping bars of markets that share a base asset have one count, across
        studies, timeframes, quote currencies and data fingerprints: a study that adds or drops a
        ticker still sees the bars that others saw. The same weights on the same bars are counted
        once.

        Args:
            tickers: traded assets, in any order.
            timeframe: length of a bar, such as `1h`.
            first: open of the first hold-out bar, seconds since the epoch.
            last: open of the last hold-out bar, seconds since the epoch.
            members_sha256: identity of the evaluated weights.
            study: name of the candidate's study.
            study_uid: unique id of that study.
            trial: number of the candidate's (first) trial.
        """
        return self._record(
            EvaluationRecord(
                kind=MARKET,
                subject=asset_set(tickers),
                timeframe=timeframe,
                first=first,
                last=last,
                members_sha256=members_sha256,
                study=study,
                study_uid=study_uid,
                trial=trial,
            )
        )

    def record_panel(
        self,
        game: str,
        games: int,
        *,
        members_sha256: str,
        study: str,
        study_uid: str,
        trial: int,
        kind: Kind = GAME,
    ) -> CountedEvaluation:
        """Count an evaluation on a game's panel, or a program's fresh seeds, before it is made.

        All evaluations on a game with the same parameters, or of a program, have one count. The
        same weights over the same number of games or seeds are counted once.

        Args:
            game: key of the game and its parameters (`sweepd.deploy.games.bundle.game_key`), or
                the program's command.
            games: number of games in the panel, or of seeds.
            members_sha256: identity of the evaluated weights or files.
            study: name of the candidate's study.
            study_uid: unique id of that study.
            trial: number of the candidate's trial.
            kind: of the study.
        """
        return self._record(
            EvaluationRecord(
                kind=kind,
                subject=game,
                games=games,
                members_sha256=members_sha256,
                study=study,
                study_uid=study_uid,
                trial=trial,
            )
        )

    def count_holdout(self, tickers: Sequence[str], first: int, last: int) -> int:
        """Number of evaluations on hold-outs that overlap the bars from `first` to `last` (opens).

        Counts those of markets with at least one of these tickers' base assets.
        """
        with self._database.reading() as connection:
            return _count_holdout(connection, asset_set(tickers), first, last)

    def count_panel(self, game: str, kind: Kind = GAME) -> int:
        """Number of evaluations on the game's panel, or of a program on fresh seeds."""
        with self._database.reading() as connection:
            return _count_panel(connection, game, kind)

    def holdout_span(self, members_sha256: str) -> tuple[int, int] | None:
        """Opens of the first and last hold-out bar of the newest evaluation of these weights."""
        query = (
            EVALUATIONS.select(
                EVALUATIONS.c.kind == MARKET, EVALUATIONS.c.members_sha256 == members_sha256
            )
            .order_by(EVALUATIONS.c.id.desc())
            .limit(1)
        )
        with self._database.reading() as connection:
            found = EVALUATIONS.read(connection, query)
        if not found or found[0].first is None or found[0].last is None:
            return None
        return found[0].first, found[0].last

    def _record(self, one: EvaluationRecord) -> CountedEvaluation:
        """Append the evaluation with its number, unless the same one was counted before."""
        names = ("kind", "subject", "first", "last", "games", "members_sha256")
        # NULL = NULL is not true in SQL.
        same = [EVALUATIONS.c[name].is_not_distinct_from(getattr(one, name)) for name in names]
        # Counted and appended in one write transaction, so concurrent promotions get different
        # numbers.
        with self._database.writing() as connection:
            known = EVALUATIONS.read(connection, EVALUATIONS.select(*same).limit(1))
            if known:
                return CountedEvaluation(known[0].number, repeated=True)
            if one.first is None or one.last is None:
                used = _count_panel(connection, one.subject, one.kind)
            else:
                used = _count_holdout(connection, one.subject, one.first, one.last)
            EVALUATIONS.add(connection, [replace(one, number=used + 1, at=utc_now())])
            return CountedEvaluation(used + 1, repeated=False)


def asset_set(tickers: Sequence[str]) -> str:
    """The key of a set of tickers, independent of their order."""
    return " ".join(sorted(tickers))


def _count_panel(connection: Connection, game: str, kind: str) -> int:
    query = select(func.count()).where(EVALUATIONS.c.kind == kind, EVALUATIONS.c.subject == game)
    return connection.scalar(query) or 0


def _count_holdout(connection: Connection, assets: str, first: int, last: int) -> int:
    query = select(EVALUATIONS.c.subject).where(
        EVALUATIONS.c.kind == MARKET, EVALUATIONS.c.first <= last, EVALUATIONS.c.last >= first
    )
    # Asset sets overlap in part, which SQL cannot express on the joined text.
    own = _base_assets(assets)
    return sum(not own.isdisjoint(_base_assets(other)) for other in connection.scalars(query))


def _base_assets(assets: str) -> frozenset[str]:
    """The base assets of an `asset_set`: BTC and ETH of `BTC/USD ETH/USDT`."""
    return frozenset(ticker.partition("/")[0].upper() for ticker in assets.split())
