"""A worker's figures for Prometheus, on http://127.0.0.1:PORT/metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from envs.support.errors import InputError
from envs.support.invocation import install_extra
from optimize.study.recovery import Heartbeat
from optimize.worker.telemetry import Telemetry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

STATES = ("WAITING", "RUNNING", "COMPLETE", "PRUNED", "FAIL")


class WorkerMetrics:
    """What is asked for at each scrape; nothing is counted in between, and the database is left alone."""

    def __init__(self, telemetry: Telemetry, heartbeat: Heartbeat) -> None:
        self.telemetry, self.heartbeat = telemetry, heartbeat

    def collect(self) -> Iterator[Metric]:
        """The metrics, all labelled with the study."""
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
            "sweepd_worker_state", "1 for what this worker is at.", labels=["study", "state"]
        )
        doing.add_metric([*label, heartbeat.state], 1)
        yield doing
        yield gauge("trials_wanted", "Finished trials that the study shall have.", telemetry.total)
        yield gauge(
            "steps_per_second",
            "Environment steps, over the last half minute.",
            telemetry.steps_per_second,
        )
        yield counter("steps", "Environment steps of this worker.", telemetry.steps_done)
        yield gauge(
            "heartbeat_age_seconds",
            "Since the last beat that was written.",
            time.monotonic() - heartbeat.beaten,
        )
        yield counter(
            "storage_retries",
            "Accesses to the database that were tried again.",
            heartbeat.storage.retries,
        )
        yield counter("recycled", "Fresh starts of this process for memory.", telemetry.recycled)
        gpu = telemetry.gpu()
        if gpu is not None:
            yield gauge(
                "gpu_utilization_ratio", "Share of the time in which the GPU worked.", gpu.share
            )
            yield gauge("gpu_memory_used_bytes", "Of all processes.", gpu.used)
            yield gauge("gpu_memory_total_bytes", "Of the GPU.", gpu.total)


@contextmanager
def serving_metrics(port: int | None, telemetry: Telemetry, heartbeat: Heartbeat) -> Iterator[None]:
    """Answer scrapes within the block; None: don't. Raises InputError where the port is taken, or prometheus_client is
    missing.
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
    """An empty registry with the process's own figures (resident memory, CPU seconds, open files)."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError:
        raise InputError(
            f"--metrics-port needs prometheus_client: {install_extra('metrics')}"
        ) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry
