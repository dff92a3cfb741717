"""Attacks on the machine's time, memory, processes and files. See base.Attack."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from workers.sandbox.attacks.base import QUICK, Attack, Barrier, Layer, forging_program, program, raw_program

_CALL_CPU: Final = (Layer(Barrier.CALL_CPU, "ends cpu: step"),)
_CALL_TIME: Final = (Layer(Barrier.CALL_TIME, "ends budget: step: asleep"),)
_SESSION_CPU: Final = (Layer(Barrier.SESSION_CPU, "ends cpu: 1 s of CPU time for the session"),)
_FORKS: Final = Layer(Barrier.CHILD_FILTER, "ends seccomp")
_CRASH: Final = (Layer(Barrier.PROCESS, "ends env_error"),)
_CONTAINED: Final = "a crash can't be let out of its process"
_SESSION: Final = replace(QUICK, cpu_s=1, step_s=6.0)
_SMALL: Final = replace(QUICK, memory_bytes=64 << 20, step_s=5.0)
_FORKING: Final = replace(QUICK, step_s=3.0)
# a compiler that gets its two seconds of a machine that is busy
_SLOW_START: Final = replace(QUICK, start_s=120.0)

_HOARD: Final = """
kept = []
for _ in range(75):
    kept.append(bytearray(4 << 20))
result = "reached"
"""
_HOARD_QUIETLY: Final = """
kept = []
end = time.process_time() + 1.2
while time.process_time() < end:
    try:
        kept.append(bytearray(1 << 20))
    except MemoryError:
        pass
result = "went on"
"""
_BUSY: Final = """
end = time.process_time() + SECONDS
while time.process_time() < end:
    pass
result = "went on"
"""
# the host looks each half second, and has to find it asleep once
_NAPS: Final = """
for _ in range(12):
    time.sleep(0.3)
    sum(range(1000))
result = "woke"
"""
_BOMB: Final = """
made = 0
try:
    while made < 150:
        if not os.fork():
            time.sleep(20)
            os._exit(0)
        made += 1
    result = "150 made"
except OSError as error:
    result = "stopped"
"""
_FILES: Final = """
kept = []
def gather():
    while len(kept) < 30:
        kept.append(os.open("/bin/python3", os.O_RDONLY))
    return "30 open"
result = attempt(gather)
"""
_FLOOD: Final = """
import resource
for _ in range(200):
    for number in (1, 2):
        try:
            os.write(number, b"x" * 1000)
        except OSError:
            pass
result = os.fstat(1).st_size
"""


def _compiler_bomb(functions: int) -> str:
    """Functions whose code doubles with each of fourteen nested `finally`."""
    body = "".join(f"{' ' * depth}try: pass\n{' ' * depth}finally:\n" for depth in range(1, 15)) + " " * 15 + "x = 1\n"
    return "".join(f"def f{number}():\n{body}" for number in range(functions)) + program("result = 1")


ATTACKS: Final = (
    Attack(
        "hoard memory",
        (Layer(Barrier.ADDRESS_SPACE, "ends oom: out of memory"), Layer(Barrier.MEMORY, "ends oom: the jail's memory limit")),
        program(_HOARD),
        "says reached",
        limits=_SMALL,
        bystander=True,
    ),
    Attack("hoard memory and hide the failures", _CALL_CPU, program(_HOARD_QUIETLY), "says went on"),
    Attack("never reply", _CALL_CPU, program(_BUSY.replace("SECONDS", "1.2")), "says went on"),
    Attack(
        "never reply from within one call",
        _CALL_CPU,
        program("end = time.process_time() + 1.2\nresult = any(map(end.__lt__, iter(time.process_time, None)))"),
        "says True",
    ),
    Attack(
        "never reply from within a pattern",
        _CALL_CPU,
        program("import re\nresult = re.match('(a+)+$', 'a' * 60 + 'b')"),
        note="without a limit it takes years",
    ),
    Attack(
        "never end the module",
        (Layer(Barrier.CALL_CPU, "ends cpu: making"),),
        "while True:\n    pass\n",
        note="without a limit it goes on",
    ),
    Attack(
        "never end the compiler",
        (Layer(Barrier.COMPILE_CPU, "ends cpu: compiling the source"),),
        _compiler_bomb(600),
        "ends timeout: the jail did not start",
        "it takes a minute or more: the host's patience with a start ends before",
        limits=_SLOW_START,
    ),
    Attack("use up the session's time", _SESSION_CPU, program(_BUSY.replace("SECONDS", "1.5")), "says went on", limits=_SESSION),
    Attack(
        "use up the session's time and ignore its signal",
        _SESSION_CPU,
        program("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" + _BUSY.replace("SECONDS", "2.5")),
        "says went on",
        limits=_SESSION,
    ),
    Attack(
        "use up the session's time call by call",
        _SESSION_CPU,
        program(_BUSY.replace("SECONDS", "0.2")),
        "says went on",
        limits=_SESSION,
        steps=8,
    ),
    Attack("sleep", _CALL_TIME, program("time.sleep(3)\nresult = 'woke'"), "says woke"),
    Attack("sleep in naps and work a little between", _CALL_TIME, program(_NAPS), "says woke"),
    Attack(
        "send a reply byte by byte",
        _CALL_TIME,
        forging_program("""
body = b'["stepped",ID,"late",0.0,false,false,true]'.replace(b"ID", str(request()).encode())
for byte in struct.pack(">I", len(body)) + body:
    os.write(channel(), bytes([byte]))
    time.sleep(0.08)
time.sleep(60)
"""),
        "says late",
    ),
    Attack(
        "wait for the host",
        _CALL_TIME,
        raw_program("result = os.read(channel(), 1)"),
        note="both would wait for ever",
    ),
    Attack(
        "play on and on",
        (Layer(Barrier.STEPS, "ends budget"),),
        program("result = 1"),
        "says 1",
        limits=replace(QUICK, steps=3),
        steps=5,
    ),
    Attack(
        "fork without end",
        (_FORKS, Layer(Barrier.PIDS, "says stopped"), Layer(Barrier.NPROC, "says stopped")),
        program(_BOMB),
        "says 150 made",
        limits=_FORKING,
    ),
    Attack("open files without end", (Layer(Barrier.OPEN_FILES, "says EMFILE"),), program(_FILES), "says 30 open"),
    Attack(
        "change the own limits",
        (Layer(Barrier.CHILD_FILTER, "ends seccomp"),),
        program("import resource\nresult = resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))"),
        "says None",
    ),
    Attack(
        "flood the output",
        (Layer(Barrier.OUTPUT, "says 0"), Layer(Barrier.LOG_SEAL, "says 65536")),
        program(_FLOOD),
        "says 400000",
    ),
    Attack("crash the interpreter", _CRASH, program("import _ctypes\nresult = _ctypes.PyObj_FromPtr(1)"), note=_CONTAINED),
    Attack("leave the process", _CRASH, program("os._exit(0)"), note=_CONTAINED),
    Attack("leave the interpreter", _CRASH, program("raise SystemExit(3)"), note=_CONTAINED),
    Attack("break the compiler by depth", _CRASH, "x = " + "(" * 5000, note="the zygote compiles and never runs a source"),
    Attack(
        "break the compiler by length", _CRASH, "x = " + "-" * 20000 + "1", note="the zygote compiles and never runs a source"
    ),
    Attack(
        "flood the log with the compiler's warnings",
        (Layer(Barrier.LOG_SEAL, "says 1"),),
        "x = 1\n" + "x is 0\n" * 2000 + program("result = 1"),
        note="the zygote's warnings go into the sealed log, which is read once",
    ),
)
