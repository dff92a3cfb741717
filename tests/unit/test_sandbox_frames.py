"""The wire's host side: whatever a jail sends becomes a reply or a typed end, never anything else."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox import frames
from workers.sandbox.base import INFRASTRUCTURE, EndReason, is_infrastructure
from workers.sandbox.cgroup import Hierarchy, find_hierarchy, prepare_parent, remove_parent, slot_cgroup
from workers.sandbox.runner import wire

HONEST = b'["stepped",7,"seen",0.5,true,false,true]'


@pytest.fixture
def ends() -> Iterator[tuple[frames.Channel, socket.socket]]:
    host, jail = socket.socketpair()
    channel = frames.Channel(host, 1024)
    yield channel, jail
    channel.close()
    jail.close()


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_a_reply_or_a_violation(body: bytes) -> None:
    try:
        frames.decode(body)
    except frames.ViolationError:
        return


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=8),
        max_leaves=12,
    )
)
def test_any_json_decodes_to_a_reply_or_a_violation(value: object) -> None:
    body = json.dumps(["stepped", 7, value, value, True, False, True]).encode()
    try:
        reply = frames.decode(body)
    except frames.ViolationError:
        return
    assert isinstance(reply, frames.Stepped)


@given(st.lists(st.binary(max_size=80), max_size=5), st.integers(0, 40))
def test_any_stream_of_bytes_ends_in_one_of_the_typed_errors(pieces: list[bytes], size: int) -> None:
    host, jail = socket.socketpair()
    channel = frames.Channel(host, 64)
    for piece in [frames.HEADER.pack(size), *pieces]:
        jail.sendall(piece)
    jail.close()
    try:
        with pytest.raises((frames.ClosedError, frames.ViolationError)):
            read_to_the_end(channel)
    finally:
        channel.close()


def read_to_the_end(channel: frames.Channel) -> None:
    """Decodes frames until something is raised."""
    while True:
        frames.decode(channel.receive(0.1))
        channel.check_quiet()


@given(st.sampled_from([HONEST, b'["began",7,"seen",true]', b'["solved",7,["a","b"]]', b'["failed",7,"raised","x"]']), st.data())
def test_honest_reply_with_bytes_changed_is_a_reply_of_bounded_values_or_a_violation(body: bytes, data: st.DataObject) -> None:
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        reply = frames.decode(bytes(changed))
    except frames.ViolationError:
        return
    assert type(reply.id) is int
    if isinstance(reply, frames.Stepped):
        assert math.isfinite(reply.reward)
        reply.observation.encode()
        assert {type(reply.terminated), type(reply.truncated), type(reply.info_empty)} == {bool}


@given(st.text(), st.floats(-1e300, 1e300), st.booleans(), st.booleans())
def test_what_the_runner_replies_is_what_the_host_decodes(observation: str, reward: float, ended: bool, empty: bool) -> None:
    told = wire.make_frame("stepped", 7, observation, reward, ended, False, empty)
    assert frames.decode(told[4:]) == frames.Stepped(7, observation, reward, ended, False, empty)


@given(st.sampled_from(["reset", "step", "solve"]), st.integers(0, (1 << 48) - 1), st.text() | st.integers(0, (1 << 63) - 1))
def test_what_the_host_asks_is_what_the_runner_reads(operation: str, identity: int, argument: str | int) -> None:
    host, jail = socket.socketpair()
    with host, jail:
        host.sendall(frames.encode(operation, identity, argument))
        assert wire.read_frame(jail.fileno()) == [operation, identity, argument]


def test_honest_reply_decodes_to_what_it_says() -> None:
    assert frames.decode(HONEST) == frames.Stepped(7, "seen", 0.5, True, False, True)


@pytest.mark.parametrize(
    "body",
    [
        HONEST.replace(b"0.5", b"NaN"),
        HONEST.replace(b"0.5", b"Infinity"),
        HONEST.replace(b"0.5", b"1e999"),
        HONEST.replace(b"0.5", b"true"),
        HONEST.replace(b"0.5", b'"0.5"'),
        HONEST.replace(b"0.5", b"9" * 400),
        HONEST.replace(b"7", b"7.0"),
        HONEST.replace(b"7", b"true"),
        HONEST.replace(b"true,false", b"1,false"),
        HONEST.replace(b"true]", b"true,1]"),
        HONEST.replace(b",true]", b"]"),
        HONEST.replace(b"seen", b"\\ud800"),
        HONEST.replace(b"seen", b"\xff\xfe"),
        HONEST.replace(b"stepped", b"unknown"),
        HONEST + HONEST,
        b'{"0":"stepped"}',
        b"[" * 100_000,
        b"null",
        b"",
    ],
)
def test_reply_that_no_honest_runner_sends_is_a_violation(body: bytes) -> None:
    with pytest.raises(frames.ViolationError):
        frames.decode(body)


def test_frame_arrives_whole_however_it_is_cut(ends: tuple[frames.Channel, socket.socket]) -> None:
    channel, jail = ends
    raw = frames.HEADER.pack(len(HONEST)) + HONEST
    jail.sendall(raw[:3])
    with pytest.raises(TimeoutError):
        channel.receive(0.01)
    jail.sendall(raw[3:20])
    with pytest.raises(TimeoutError):
        channel.receive(0.01)
    jail.sendall(raw[20:])
    assert channel.receive(1.0) == HONEST


def test_frame_that_trickles_does_not_stretch_the_deadline(ends: tuple[frames.Channel, socket.socket]) -> None:
    channel, jail = ends
    stop = threading.Event()

    def trickle() -> None:
        for byte in frames.HEADER.pack(len(HONEST)) + HONEST:
            jail.sendall(bytes([byte]))
            if stop.wait(0.02):
                return

    sender = threading.Thread(target=trickle)
    sender.start()
    try:
        with pytest.raises(TimeoutError):
            channel.receive(0.2)  # all of it takes more than a second
    finally:
        stop.set()
        sender.join()


def test_frame_over_the_limit_is_refused_before_its_body_comes(ends: tuple[frames.Channel, socket.socket]) -> None:
    channel, jail = ends
    jail.sendall(frames.HEADER.pack(1025))
    with pytest.raises(frames.ViolationError, match="1025"):
        channel.receive(1.0)


def test_bytes_behind_a_reply_are_a_violation(ends: tuple[frames.Channel, socket.socket]) -> None:
    channel, jail = ends
    jail.sendall(frames.HEADER.pack(len(HONEST)) + HONEST + b"x")
    channel.receive(1.0)
    with pytest.raises(frames.ViolationError):
        channel.check_quiet()


def test_quiet_channel_passes_and_closed_one_says_so(ends: tuple[frames.Channel, socket.socket]) -> None:
    channel, jail = ends
    channel.check_quiet()
    jail.close()
    with pytest.raises(frames.ClosedError):
        channel.receive(1.0)


def test_request_with_surrogates_is_not_encoded() -> None:
    with pytest.raises(UnicodeEncodeError):
        frames.encode("step", 1, "\ud800")


def test_only_wall_clock_and_death_are_infrastructure() -> None:
    assert {reason for reason in EndReason if is_infrastructure(reason)} == INFRASTRUCTURE == {EndReason.TIMEOUT, EndReason.DIED}


def test_cgroup_version_one_is_found_by_its_controllers() -> None:
    mounts = "".join(f"cgroup /sys/fs/cgroup/{name} cgroup rw,relatime,{name} 0 0\n" for name in ("memory", "pids", "cpuacct"))
    found = find_hierarchy(mounts)
    assert found is not None
    assert found.version == 1
    assert str(slot_cgroup(found, 3).folders["memory"]) == "/sys/fs/cgroup/memory/spade/slot-3"


def test_cgroup_version_two_needs_both_controllers(tmp_path: object) -> None:
    mounts = f"cgroup2 {tmp_path} cgroup2 rw 0 0\n"
    from pathlib import Path

    (Path(str(tmp_path)) / "cgroup.controllers").write_text("cpu memory\n")
    assert find_hierarchy(mounts) is None
    (Path(str(tmp_path)) / "cgroup.controllers").write_text("cpu memory pids\n")
    found = find_hierarchy(mounts)
    assert found is not None
    group = slot_cgroup(found, 1)
    assert group.version == 2
    for folder in group.folders.values():
        folder.mkdir(parents=True)
        (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
        (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert group.oom_kills() == 2
    assert group.cpu_s() == 2.5


def test_a_slots_parent_is_made_again_where_another_process_took_it_away(tmp_path: Path) -> None:
    hierarchy = Hierarchy(1, {name: tmp_path / name for name in ("memory", "pids", "cpuacct")})
    for folder in hierarchy.mounts.values():
        folder.mkdir()
    assert prepare_parent(hierarchy) == ""
    remove_parent(hierarchy)
    group = slot_cgroup(hierarchy, 3)
    for folder in group.folders.values():
        group._make(folder)
        assert folder.is_dir()
    remove_parent(hierarchy)  # a slot is there: the parent stays
    assert all(folder.is_dir() for folder in group.folders.values())
    group.remove()
    remove_parent(hierarchy)
    assert not any((folder / "spade").exists() for folder in hierarchy.mounts.values())
