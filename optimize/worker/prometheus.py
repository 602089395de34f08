"""Prometheus metrics of a worker, served on http://127.0.0.1:PORT/metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from envs.support.errors import InputError
from envs.support.invocation import install_extra
from optimize.study.recovery.heartbeat import Heartbeat
from optimize.worker.telemetry import Telemetry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

STATES = ("WAITING", "RUNNING", "COMPLETE", "PRUNED", "FAIL")


class WorkerMetrics:
    """Collects the metrics at each scrape from memory, without reading the database."""

    def __init__(self, telemetry: Telemetry, heartbeat: Heartbeat) -> None:
        self.telemetry, self.heartbeat = telemetry, heartbeat

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, all labelled with the study."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        telemetry, heartbeat = self.telemetry, self.heartbeat
        label = [telemetry.study_name]

        def gauge(name: str, text: str, value: float) -> Metric:
            family = GaugeMetricFamily(f"sweepd_{name}", text, labels=["study"])
            family.add_metric(label, value)
            return family

        def counter(name: str, text: str, value: float) -> Metric:
            family = CounterMetricFamily(f"sweepd_{name}", text, labels=["study"])
            family.add_metric(label, value)
            return family

        trials = GaugeMetricFamily(
            "sweepd_trials", "Trials of the study by state.", labels=["study", "state"]
        )
        for state in STATES:
            trials.add_metric([*label, state.lower()], telemetry.counts.get(state, 0))
        yield trials
        doing = GaugeMetricFamily(
            "sweepd_worker_state", "1 for the worker's current state.", labels=["study", "state"]
        )
        doing.add_metric([*label, heartbeat.state], 1)
        yield doing
        yield gauge(
            "trials_wanted",
            "Number of finished trials at which the study is complete.",
            telemetry.total,
        )
        yield gauge(
            "steps_per_second",
            "Environment steps per second over the last 30 seconds.",
            telemetry.steps_per_second,
        )
        yield counter("steps", "Environment steps of this worker.", telemetry.steps_done)
        yield gauge(
            "heartbeat_age_seconds",
            "Seconds since the last heartbeat was written.",
            time.monotonic() - heartbeat.beaten,
        )
        yield counter(
            "storage_retries", "Retries of accesses to the database.", heartbeat.storage.retries
        )
        yield counter("recycled", "Restarts of this process to free memory.", telemetry.recycled)
        gpu = telemetry.gpu()
        if gpu is not None:
            yield gauge(
                "gpu_utilization_ratio", "Share of time in which the GPU was busy.", gpu.share
            )
            yield gauge("gpu_memory_used_bytes", "GPU memory used by all processes.", gpu.used)
            yield gauge("gpu_memory_total_bytes", "Memory of the GPU.", gpu.total)


@contextmanager
def serving_metrics(port: int | None, telemetry: Telemetry, heartbeat: Heartbeat) -> Iterator[None]:
    """Serve metrics within the block unless `port` is None.

    Raises:
        InputError: the port is in use, or prometheus_client is not installed.
    """
    if port is None:
        yield
        return
    registry = make_registry()
    registry.register(WorkerMetrics(telemetry, heartbeat))
    from prometheus_client import start_http_server

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


def make_registry() -> Any:
    """Return a registry with metrics of the process: resident memory, CPU seconds, open files."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError:
        raise InputError(
            f"--metrics-port needs prometheus_client: {install_extra('metrics')}"
        ) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry
