"""The count of evaluations on hold-outs and panels, which decides the gate's significance level.

Each further evaluation on the same unseen data makes it likelier that some candidate passes by
luck, so the gate asks for more significance each time
(`sweepd.deploy.promotion.bootstrap.gate_level`). Evaluations are counted in the registry, across
studies, and before they are made, so that a crash does not make one free.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sweepd.deploy.registry.bundle_files import GAME, MARKET
from sweepd.deploy.registry.database import RegistryDatabase, utc_now
from sweepd.deploy.registry.models import EvaluationRow
from sweepd.deploy.registry.records import CountedEvaluation


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
            EvaluationRow(
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
        self, game: str, games: int, *, members_sha256: str, study: str, study_uid: str, trial: int
    ) -> CountedEvaluation:
        """Count an evaluation on a game's panel before it is made.

        All evaluations on a game with the same parameters have one count. The same weights over
        the same number of games are counted once.

        Args:
            game: key of the game and its parameters (`sweepd.deploy.games.bundle.game_key`).
            games: number of games in the panel.
            members_sha256: identity of the evaluated weights.
            study: name of the candidate's study.
            study_uid: unique id of that study.
            trial: number of the candidate's trial.
        """
        return self._record(
            EvaluationRow(
                kind=GAME,
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
        with self._database.reading() as session:
            return _count_holdout(session, asset_set(tickers), first, last)

    def count_panel(self, game: str) -> int:
        """Number of evaluations on the game's panel."""
        with self._database.reading() as session:
            return _count_panel(session, game)

    def holdout_span(self, members_sha256: str) -> tuple[int, int] | None:
        """Opens of the first and last hold-out bar of the newest evaluation of these weights."""
        query = (
            select(EvaluationRow)
            .where(EvaluationRow.kind == MARKET, EvaluationRow.members_sha256 == members_sha256)
            .order_by(EvaluationRow.id.desc())
            .limit(1)
        )
        with self._database.reading() as session:
            row = session.scalars(query).first()
            return (
                None
                if row is None or row.first is None or row.last is None
                else (row.first, row.last)
            )

    def _record(self, row: EvaluationRow) -> CountedEvaluation:
        """Append the row with its number, unless the same evaluation was counted before."""
        same = [
            EvaluationRow.kind == row.kind,
            EvaluationRow.subject == row.subject,
            # NULL = NULL is not true in SQL
            EvaluationRow.first.is_not_distinct_from(row.first),
            EvaluationRow.last.is_not_distinct_from(row.last),
            EvaluationRow.games.is_not_distinct_from(row.games),
            EvaluationRow.members_sha256 == row.members_sha256,
        ]
        # Counted and appended in one write transaction, so concurrent promotions get different
        # numbers.
        with self._database.writing() as session:
            number = session.scalar(select(EvaluationRow.number).where(*same))
            if number is not None:
                return CountedEvaluation(number, repeated=True)
            if row.first is None or row.last is None:
                used = _count_panel(session, row.subject)
            else:
                used = _count_holdout(session, row.subject, row.first, row.last)
            row.number, row.at = used + 1, utc_now()
            session.add(row)
            return CountedEvaluation(used + 1, repeated=False)


def asset_set(tickers: Sequence[str]) -> str:
    """The key of a set of tickers, independent of their order."""
    return " ".join(sorted(tickers))


def _count_panel(session: Session, game: str) -> int:
    query = select(func.count()).where(EvaluationRow.kind == GAME, EvaluationRow.subject == game)
    return session.scalar(query) or 0


def _count_holdout(session: Session, assets: str, first: int, last: int) -> int:
    query = select(EvaluationRow.subject).where(
        EvaluationRow.kind == MARKET, EvaluationRow.first <= last, EvaluationRow.last >= first
    )
    # Asset sets overlap in part, which SQL cannot express on the joined text.
    own = _base_assets(assets)
    return sum(not own.isdisjoint(_base_assets(other)) for other in session.scalars(query))


def _base_assets(assets: str) -> frozenset[str]:
    """The base assets of an `asset_set`: BTC and ETH of `BTC/USD ETH/USDT`."""
    return frozenset(ticker.partition("/")[0].upper() for ticker in assets.split())
