"""Names of a replay's files, for processes that only read them and import no torch."""

from __future__ import annotations

REPLAYS = "replays"  # folder of a deployments folder; each replay has a folder in it
LEDGER, ORDERS, BARS = "ledger.parquet", "orders.parquet", "bars.parquet"
SUMMARY = "summary.json"
