"""Attacks on the host over the session's channel: forged, malformed, too many and too large frames, and a bent runner. See
base.Attack."""

from __future__ import annotations

from typing import Final

from workers.sandbox.attacks.base import Attack, Barrier, Layer, forging_program, program

_STRICT: Final = (Layer(Barrier.STRICT_DECODING, "ends protocol: step: not a reply"),)
_MATCH: Final = Barrier.MATCH
_UNASKED: Final = (Layer(Barrier.NOTHING_UNASKED, "ends protocol"),)
_ASLEEP: Final = "\ntime.sleep(9)"


def _forge(body: bytes) -> str:
    return forging_program(f"send({body!r}){_ASLEEP}")


def _malformed(name: str, body: bytes, effect: str = "says forged", note: str = "") -> Attack:
    return Attack(name, _STRICT, _forge(body), effect, note)


def _bent(lines: str) -> str:
    """A program that changes the runner around it, which then replies for it."""
    return program(f"runner = sys.modules['spade_runner']\n{lines}\nresult = 'forged'")


_EARLY: Final = """
        frame = sys._getframe()
        while type(frame.f_locals.get("self")).__name__ != "Child":
            frame = frame.f_back
        made = b'["made",%d]' % frame.f_locals["self"].session
        began = b'["began",5,"early",true]'
        os.write(channel(), b"".join(struct.pack(">I", len(body)) + body for body in (made, began)))
"""
_BOUNDED: Final = "the host looks at the number itself next"
_UNBOUNDED: Final = "ends protocol: a reward that is not finite"

ATTACKS: Final = (
    _malformed("pay infinity", b'["stepped",ID,"forged",1e999,true,false,true]', _UNBOUNDED, _BOUNDED),
    _malformed("pay not a number", b'["stepped",ID,"forged",NaN,true,false,true]', _UNBOUNDED, _BOUNDED),
    _malformed("pay a truth value", b'["stepped",ID,"forged",true,true,false,true]'),
    _malformed("pay a text", b'["stepped",ID,"forged","1",true,false,true]', "raises TypeError"),
    _malformed(
        "pay a number of a thousand digits",
        b'["stepped",ID,"forged",' + b"9" * 1000 + b",true,false,true]",
        "raises OverflowError",
    ),
    _malformed("end by a number", b'["stepped",ID,"forged",1.0,1,0,true]'),
    _malformed("send a field more", b'["stepped",ID,"forged",1.0,true,false,true,"more"]'),
    _malformed("send a surrogate", b'["stepped",ID,"forged\\ud800",1.0,true,false,true]'),
    _malformed("send bytes that are no text", b'["stepped",ID,"forged\xff",1.0,true,false,true]'),
    _malformed("send an object", b'{"kind":"stepped","id":ID,"text":"forged","pay":1.0,"a":true,"b":false,"c":true}'),
    _malformed("send deep nesting", b"[" * 20000, "raises RecursionError"),
    _malformed("send two replies in one frame", b'["stepped",ID,"forged",1.0,true,false,true] []', "raises JSONDecodeError"),
    _malformed("send an empty frame", b"", "raises JSONDecodeError"),
    _malformed("send an unknown kind", b'["hurrah",ID,"forged",1.0,true,false,true]'),
    Attack(
        "reply to another request",
        (Layer(_MATCH, "ends protocol: step: a reply to another request"),),
        _forge(b'["stepped",1,"forged",1.0,true,false,true]'),
        "says forged",
    ),
    Attack(
        "greet again",
        (Layer(_MATCH, "ends protocol: step: a reply of another kind"),),
        _forge(b'["hello",ID]'),
        "raises AttributeError",
        "a greeting has no reward",
    ),
    Attack(
        "reply as to a reset",
        (Layer(_MATCH, "ends protocol: step: a reply of another kind"),),
        _forge(b'["began",ID,"forged",true]'),
        "raises AttributeError",
        "a beginning has no reward",
    ),
    Attack(
        "fail in an unknown way",
        (Layer(_MATCH, "ends protocol: a failure of unknown kind"),),
        _forge(b'["failed",ID,"odd","text"]'),
        "raises AttributeError",
        "a failure has no reward",
    ),
    Attack(
        "reply twice",
        _UNASKED,
        forging_program("""
body = b'["stepped",ID,"forged",1.0,true,false,true]'.replace(b"ID", str(request()).encode())
os.write(channel(), (struct.pack(">I", len(body)) + body) * 2)
time.sleep(9)
"""),
        "says forged",
    ),
    Attack(
        "reply before the request",
        (Layer(Barrier.NOTHING_UNASKED, "ends protocol: making the environment: "),),
        forging_program("result = 'honest'").replace("        pass\n    def reset", _EARLY + "    def reset"),
        "ends protocol: reset: a reply to another request",
        "the reply has to fit its request next",
    ),
    Attack(
        "flood the host",
        _UNASKED,
        forging_program("""
send(b'["stepped",ID,"forged",1.0,true,false,true]')
for _ in range(9999):
    os.write(channel(), b"x" * 999)
"""),
        note="without this barrier the flood is taken for a frame, which is too large",
        steps=2,
    ),
    Attack(
        "promise gigabytes",
        (Layer(Barrier.FRAME_SIZE, "ends protocol: step: a frame of"),),
        forging_program(f"send(b'x', 0xffffffff){_ASLEEP}"),
        "ends budget: step: asleep",
        "the host waits for them",
    ),
    Attack(
        "send a large frame",
        (Layer(Barrier.FRAME_SIZE, "ends protocol: step: a frame of"),),
        _forge(b'["stepped",ID,"' + b"forged" * 12000 + b'",1.0,true,false,true]'),
        "says forged",
    ),
    Attack(
        "observe a large text",
        (
            Layer(Barrier.TEXT_SIZE, "ends protocol: an observation has"),
            Layer(Barrier.FRAME_SIZE, "ends protocol: step: a frame of"),
        ),
        program("result = 'x' * 70000"),
        "says x",
    ),
    Attack(
        "observe a text that grows on its way",
        (Layer(Barrier.FRAME_SIZE, "ends protocol: step: a frame of"),),
        program("result = '\\0' * 50000"),
        "says \0",
    ),
    Attack(
        "promise more than is sent and leave",
        (Layer(Barrier.PROCESS, "ends env_error"),),
        forging_program("send(b'[', 1000)\nos._exit(0)"),
        note="an end is an end",
    ),
    Attack(
        "close the channel and work on",
        (Layer(Barrier.KILL, "ends protocol: the environment's process closed"),),
        forging_program("os.close(channel())\nwhile True:\n    pass"),
        note="a process that works on would have to be left running",
    ),
    Attack(
        "bend the runner's check of rewards",
        _STRICT,
        _bent("runner.check_reward = lambda value: float('nan')"),
        "raises JSONDecodeError",
        "a decoder that reads Infinity may not read inf",
    ),
    Attack(
        "bend the runner's encoder",
        _STRICT,
        _bent("runner.encode = lambda value: '{\"a\": 1}'"),
        "raises",
        "what the lenient decoder makes of it fits no reply",
    ),
    Attack(
        "reply from within the runner's own call",
        _STRICT,
        forging_program("""
def profile(frame, event, function):
    if event == "c_call" and function.__name__ == "write":
        sys.setprofile(None)
        send(b'["stepped",ID,"forged",NaN,true,false,true]')
        time.sleep(9)
sys.setprofile(profile)
result = "honest"
"""),
        _UNBOUNDED,
        _BOUNDED,
    ),
    Attack(
        "find the runner by the garbage collector and reply for it",
        (Layer(_MATCH, "ends protocol: step: a reply to another request"),),
        program("""
import gc, struct
runner = sys.modules["spade_runner"]
child = next(one for one in gc.get_objects() if type(one) is runner.Child)
honest = runner.send_frame
runner.send_frame = lambda channel, kind, number, *rest: honest(channel, kind, 5, *rest)
result = "forged"
"""),
        "says forged",
    ),
)
