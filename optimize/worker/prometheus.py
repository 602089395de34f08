"""Prometheus metrics of a worker, served on http://127.0.0.1:PORT/metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import install_extra
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.worker.telemetry import Telemetry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Row = tuple[str, str, float]  # name, description, value
STATES = ("WAITING", "RUNNING", "COMPLETE", "PRUNED", "FAIL")


@dataclass(frozen=True)
class WorkerMetrics:
    """Collects the metrics at each scrape from memory, without reading the database."""

    telemetry: Telemetry
    heartbeat: Heartbeat

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, all labelled with the study."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        study = [self.telemetry.study_name]
        counts = {state.lower(): self.telemetry.counts.get(state, 0) for state in STATES}
        for name, text, by_state in (
            ("trials", "Trials of the study by state.", counts),
            ("worker_state", "1 for the worker's current state.", {self.heartbeat.state: 1}),
        ):
            states = GaugeMetricFamily(f"sweepd_{name}", text, labels=["study", "state"])
            for state, value in by_state.items():
                states.add_metric([*study, state], value)
            yield states
        for kind, rows in (
            (GaugeMetricFamily, self._gauges()),
            (CounterMetricFamily, self._counters()),
        ):
            for name, text, number in rows:
                family = kind(f"sweepd_{name}", text, labels=["study"])
                family.add_metric(study, number)
                yield family

    def _gauges(self) -> list[Row]:
        telemetry, gpu = self.telemetry, self.telemetry.gpu()
        age = time.monotonic() - self.heartbeat.beaten
        rows: list[Row] = [
            (
                "trials_wanted",
                "Number of finished trials at which the study is complete.",
                telemetry.total,
            ),
            (
                "steps_per_second",
                "Environment steps per second over the last 30 seconds.",
                telemetry.steps_per_second,
            ),
            ("heartbeat_age_seconds", "Seconds since the last heartbeat was written.", age),
        ]
        if gpu is not None:
            measured: list[tuple[str, str, float | None]] = [
                ("gpu_utilization_ratio", "Share of time in which the GPU was busy.", gpu.share),
                ("gpu_memory_used_bytes", "GPU memory used by all processes.", gpu.used),
                ("gpu_memory_total_bytes", "Memory of the GPU.", gpu.total),
                ("gpu_power_watts", "Power that the GPU draws.", gpu.power),
            ]
            rows += [(name, text, value) for name, text, value in measured if value is not None]
        return rows

    def _counters(self) -> list[Row]:
        telemetry, retries = self.telemetry, self.heartbeat.storage.patience.retries
        return [
            ("steps", "Environment steps of this worker.", telemetry.steps_done),
            ("storage_retries", "Retries of accesses to the database.", retries),
            ("recycled", "Restarts of this process to free memory.", telemetry.recycled),
        ]


@contextmanager
def serving_metrics(port: int | None, telemetry: Telemetry, heartbeat: Heartbeat) -> Iterator[None]:
    """Serve metrics within the block unless `port` is None.

    Raises:
        InputError: the port is in use, or prometheus_client is not installed.
    """
    if port is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    except ImportError:
        raise InputError(
            f"--metrics-port needs prometheus_client: {install_extra('metrics')}"
        ) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)  # resident memory, CPU seconds, open files
    registry.register(WorkerMetrics(telemetry, heartbeat))
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise InputError(
            f"--metrics-port {port} on 127.0.0.1 cannot be used ({error.strerror}); choose another"
        ) from None
    telemetry.say(f"metrics on http://127.0.0.1:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
