"""Attacks on files and mounts: reading the host's, writing anywhere, leaving the root. See base.Attack."""

from __future__ import annotations

from typing import Final

from workers.sandbox.attacks.base import Attack, Barrier, Layer, program, raw_program

_HIDDEN: Final = (Layer(Barrier.PRIVATE_ROOT, "says ENOENT"),)
_NO_PLACE: Final = (*_HIDDEN, Layer(Barrier.READ_ONLY, "says EROFS"))
_OWNED: Final = "the files belong to another user, who answers next"


def _write(path: str) -> str:
    return program(f"result = attempt(lambda: open({path!r}, 'w').write('x'))")


def _change(name: str, call: str) -> Attack:
    """A call that changes the tree: not among the jail's calls; then the read-only root answers."""
    layers = (Layer(Barrier.ALLOW_LIST, "says EPERM"), Layer(Barrier.READ_ONLY, "says EROFS"))
    return Attack(name, layers, program(f"result = attempt(lambda: {call})"), "says EACCES", _OWNED)


ATTACKS: Final = (
    Attack(
        "read a world-readable file of the host",
        _HIDDEN,
        program("result = attempt(lambda: open('CANARY_FILE').read())"),
        "says CANARY",
    ),
    Attack(
        "list a folder of the host", _HIDDEN, program("result = attempt(lambda: os.listdir('CANARY_FOLDER'))"), "says ['canary']"
    ),
    Attack(
        "climb out of the root by parent folders",
        _HIDDEN,
        program("result = attempt(lambda: open('../' * 40 + 'CANARY_FILE'[1:]).read())"),
        "says CANARY",
    ),
    Attack("read the host's users", _HIDDEN, program("result = attempt(lambda: open('/etc/passwd').read(4))"), "says root"),
    Attack(
        "read the kernel's log",
        _HIDDEN,
        program("result = attempt(lambda: os.open('/dev/kmsg', os.O_RDONLY))"),
        note="a device would have to be made for it",
    ),
    Attack(
        "write into the root",
        (Layer(Barrier.READ_ONLY, "says EROFS"), Layer(Barrier.OWNER, "says EACCES")),
        _write("/x"),
        "says 1",
    ),
    Attack("write into /tmp", _NO_PLACE, _write("/tmp/x"), "says 1"),  # noqa: S108 - in the jail
    Attack("write into shared memory", _NO_PLACE, _write("/dev/shm/x"), "says 1"),  # noqa: S108 - in the jail
    Attack(
        "poison the runner of later jails",
        (Layer(Barrier.OWNER, "says EACCES"), Layer(Barrier.READ_ONLY, "says EROFS")),
        program("result = attempt(lambda: os.close(os.open('/lib/python3.11/spade_runner.pyc', os.O_RDWR)))"),
        "says None",
        rootless="says EROFS",
    ),
    _change("make a folder", "os.mkdir('/folder')"),
    _change("unlink the interpreter", "os.unlink('/bin/python3')"),
    _change("make a symbolic link", "os.symlink('/', '/link')"),
    _change("move the library away", "os.rename('/lib', '/gone')"),
    Attack(
        "make the interpreter writable",
        (Layer(Barrier.ALLOW_LIST, "says EPERM"),),
        program("result = attempt(lambda: os.chmod('/bin/python3', 0o777))"),
        "says EROFS",
        note="the read-only root answers next",
    ),
    Attack(
        "leave the working folder",
        (Layer(Barrier.ALLOW_LIST, "says EPERM"),),
        program("result = attempt(lambda: os.chdir('/lib'))"),
        "says None",
    ),
    Attack(
        "change the root",
        (Layer(Barrier.ALLOW_LIST, "ends seccomp"),),
        program("result = attempt(lambda: os.chroot('/lib'))"),
        "says EPERM",
        note="no capability is left, which answers next",
    ),
    Attack(
        "list processes",
        (Layer(Barrier.NO_PROC, "says ENOENT"),),
        program("result = attempt(lambda: '1' in os.listdir('/proc'))"),
        "says True",
    ),
    Attack(
        "read a process's environment",
        (Layer(Barrier.NO_PROC, "says ENOENT"),),
        program("result = attempt(lambda: b'PYTHONHASHSEED' in open('/proc/self/environ', 'rb').read())"),
        "says True",
    ),
    Attack(
        "read the zygote's memory",
        (Layer(Barrier.NO_PROC, "says ENOENT"),),
        program("result = attempt(lambda: os.close(os.open('/proc/1/mem', os.O_RDONLY)))"),
        "says ",
    ),
    Attack(
        "open a file by its handle",
        (Layer(Barrier.ALLOW_LIST, "ends seccomp"),),
        raw_program("result = call(<open_by_handle_at>, 0, room(64)[1], 0)"),
        "says E",
        note="no capability is left, which answers next",
    ),
)
