"""Logs and metrics of a process, under one set-up. Called by the entry points; every other module only asks for a logger.

Logs go to stderr: a line for people, or JSON on request, with process, run_id and what else is bound. Metrics are Prometheus
counters, gauges and histograms whose names stand in one table; they are counted always and served where a port is given.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from infra.clientlogs import quieten_kafka
from infra.plaintext import escape, escape_line
from schemas.errors import PortInUseError

LONGEST_TEXT = 20_000
MetricName = Literal[
    "spade_records_in_total",
    "spade_records_out_total",
    "spade_dead_letters_total",
    "spade_designs_total",
    "spade_gate_seconds",
    "spade_plays_total",
    "spade_play_seconds",
    "spade_tokens_sampled_total",
    "spade_policy_version",
    "spade_policy_load_seconds",
    "spade_open_groups",
    "spade_steps_total",
    "spade_step_seconds",
    "spade_loss",
    "spade_effective_sample_share",
    "spade_policy_lag",
    "spade_policy_lag_limit",
    "spade_rows_stored_total",
    "spade_generations_closed",
    "spade_win_rate",
    "spade_regret",
    "spade_regret_error",
    "spade_diversity_share",
    "spade_restarts_total",
    "spade_process_info",
]
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class MetricSpec:
    """One row of the metric table."""

    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


METRICS: dict[MetricName, MetricSpec] = {
    "spade_records_in_total": MetricSpec("counter", "records read", ("topic",)),
    "spade_records_out_total": MetricSpec("counter", "records acknowledged by the broker", ("topic",)),
    "spade_dead_letters_total": MetricSpec("counter", "records that could not be used", ("topic",)),
    "spade_designs_total": MetricSpec("counter", "designs by the gate's verdict: valid, or the rule that refused", ("verdict",)),
    "spade_gate_seconds": MetricSpec("histogram", "seconds that the gate took for a design"),
    "spade_plays_total": MetricSpec("counter", "episodes by arm and end", ("arm", "end")),
    "spade_play_seconds": MetricSpec("histogram", "seconds that a unit of plays took"),
    "spade_tokens_sampled_total": MetricSpec("counter", "tokens sampled by role", ("role",)),
    "spade_policy_version": MetricSpec("gauge", "policy version that the process holds"),
    "spade_policy_load_seconds": MetricSpec("histogram", "seconds that fetching and loading a policy took"),
    "spade_open_groups": MetricSpec("gauge", "groups that wait for members", ("stage",)),
    "spade_steps_total": MetricSpec("counter", "optimizer steps by outcome", ("outcome",)),
    "spade_step_seconds": MetricSpec("histogram", "seconds of an optimizer step by phase", ("phase",)),
    "spade_loss": MetricSpec("gauge", "last loss by role", ("role",)),
    "spade_effective_sample_share": MetricSpec("gauge", "ESS of the last step by role, 0 to 1", ("role",)),
    "spade_policy_lag": MetricSpec("gauge", "largest lag of the last step in versions, by role", ("role",)),
    "spade_policy_lag_limit": MetricSpec("gauge", "most versions that a trained sample may be old, by role", ("role",)),
    "spade_rows_stored_total": MetricSpec("counter", "rows acknowledged by the store", ("table",)),
    "spade_generations_closed": MetricSpec("gauge", "closed generations, as the memory sink has read them"),
    "spade_win_rate": MetricSpec("gauge", "win rate of the last closed generation by arm, 0 to 1", ("arm",)),
    "spade_regret": MetricSpec("gauge", "mean regret of the last closed generation"),
    "spade_regret_error": MetricSpec("gauge", "standard error of that regret"),
    "spade_diversity_share": MetricSpec("gauge", "Vendi score of the last closed generation / its environments, 0 to 1"),
    "spade_restarts_total": MetricSpec("counter", "restarts of a supervised process", ("process",)),
    "spade_process_info": MetricSpec("gauge", "1: this process, its kind and run", ("process", "run")),
}
_BUILDERS: dict[Kind, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
REGISTRY = CollectorRegistry()


@functools.cache
def metric(name: MetricName) -> Any:
    """The metric of that name, made at first use; a prometheus_client Counter, Gauge or Histogram."""
    spec = METRICS[name]
    return _BUILDERS[spec.kind](name, spec.meaning, spec.labels, registry=REGISTRY)


def count(name: MetricName, amount: float = 1.0, **labels: str) -> None:
    """Adds to a counter."""
    chosen = metric(name)
    (chosen.labels(**labels) if labels else chosen).inc(amount)


def set_gauge(name: MetricName, value: float, **labels: str) -> None:
    """Sets a gauge."""
    chosen = metric(name)
    (chosen.labels(**labels) if labels else chosen).set(value)


def observe(name: MetricName, value: float, **labels: str) -> None:
    """Adds an observation to a histogram."""
    chosen = metric(name)
    (chosen.labels(**labels) if labels else chosen).observe(value)


def serve_metrics(port: int) -> None:
    """Serves the metrics at http://127.0.0.1:PORT/metrics from a daemon thread; raises PortInUseError. 0: does nothing."""
    if port:
        try:
            start_http_server(port, addr="127.0.0.1", registry=REGISTRY)
        except OSError as problem:
            raise PortInUseError(
                f"the metrics port {port} can't be opened ({problem.strerror})", "Name another with --metrics-port, or 0 for none"
            ) from problem


def setup_logging(process: str, run_id: str = "", as_json: bool = False, level: int = logging.INFO) -> None:
    """Sets up structlog and the standard library's logging for this process; called once, by the entry point."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    for_people = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)
    renderer: Any = structlog.processors.JSONRenderer() if as_json else for_people
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            escape_event,
            renderer,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    quieten_kafka()
    for noisy in ("aiokafka", "httpx", "httpcore", "urllib3", "uvicorn.access", "matplotlib", "faust", "mode"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(process=process, **({"run_id": run_id} if run_id else {}))


def escape_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A log event whose texts can't act on who reads them, whatever a design or a model wrote into them."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = escape(value, LONGEST_TEXT) if key == "exception" else escape_line(value, LONGEST_TEXT)
    return event


def bind_run(run_id: str) -> None:
    """Adds the run to every later line of this process (and, in threads started later, where they copy the context)."""
    structlog.contextvars.bind_contextvars(run_id=run_id)


def get_logger(name: str) -> Any:
    """A structlog logger; `log.info("event", key=value)`. Works before `setup_logging` too."""
    return structlog.stdlib.get_logger(name)
