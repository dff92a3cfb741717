"""Which loopback port each kind of process serves its Prometheus metrics on.

In: a process's kind, as its logs name it (train, stream-score, work-rollout, run). Out: a port of that kind's range: the first
that is free, so that several workers of a pool, or several runs on one machine, stand side by side. prometheus.yml in
infra/prometheus scrapes all of them (a test holds the two together). Called by the commands that are processes of a run.
"""

from __future__ import annotations

from typing import Final

from schemas.errors import PortInUseError, SettingsError

FIRST_FREE: Final = -1
"""Instead of a port: the first free one of the kind's range, or none where all are taken."""
RANGES: Final[dict[str, range]] = {
    "run": range(14700, 14704),
    "train": range(14704, 14708),
    "stream-design": range(14708, 14712),
    "stream-rollout": range(14712, 14716),
    "stream-score": range(14716, 14720),
    "stream-batch": range(14720, 14724),
    "work-memory": range(14724, 14728),
    "work-design": range(14728, 14744),
    "work-validate": range(14744, 14760),
    "work-rollout": range(14760, 14792),
}


def serve(process: str, port: int, run_id: str = "") -> int:
    """Serves this process's metrics; the port, 0 for none. `port`: 0 for none, FIRST_FREE, or one that has to be free.

    Raises PortInUseError where the one that was named is taken, SettingsError for a kind that has no range.
    """
    if port == 0:
        return 0
    from infra import telemetry

    telemetry.set_gauge("spade_process_info", 1, process=process, run=run_id)
    if port != FIRST_FREE:
        telemetry.serve_metrics(port)
        return port
    if process not in RANGES:
        raise SettingsError(f"there are no metrics ports for a process {process!r}", f"Known: {', '.join(RANGES)}")
    for candidate in RANGES[process]:
        try:
            telemetry.serve_metrics(candidate)
        except PortInUseError:
            continue
        return candidate
    telemetry.get_logger("infra.metricports").warning(
        "no metrics: every port of this kind is taken", first=RANGES[process].start, last=RANGES[process].stop - 1
    )
    return 0
