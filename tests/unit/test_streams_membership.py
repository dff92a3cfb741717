"""Static names in a consumer group: never shared by live processes, taken up again after a death."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid

from streams.membership import Membership

HOLD = "import sys; from streams.membership import Membership as M; m = M(sys.argv[1]); print(m.instance_id, flush=True); input()"


def test_live_processes_have_different_names_and_a_freed_one_is_taken_again() -> None:
    group = uuid.uuid4().hex
    with Membership(group) as first:
        with Membership(group) as second:
            assert first.instance_id.endswith("-0")
            assert second.instance_id.endswith("-1")
        with Membership(group) as third:
            assert third.instance_id == second.instance_id


def test_name_of_a_killed_process_is_free_at_once() -> None:
    group = uuid.uuid4().hex
    holder = subprocess.Popen([sys.executable, "-c", HOLD, group], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    name = holder.stdout.readline().strip()
    with Membership(group) as other:
        assert other.instance_id != name
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=10)
    with Membership(group) as again:
        assert again.instance_id == name
