"""The jail's private root: a python, the part of the standard library that environments may use, and nothing else.

In: this interpreter, and which of PACKAGES the recipe allows. Out: a folder that is built once, named by the digest of what it
holds, and never written again; rootcache.py says how long it stays. No shell, no writable place, no device; modules and shared
objects are those that the listed modules were seen to load. Who calls: the engine, and `spade doctor`. Blocks for about a second
on the first call of a machine (some seconds with packages). May raise SandboxError.
"""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from schemas.errors import SandboxError
from workers.sandbox.rootcache import BUILDING, ROOT, lock_shared
from workers.sandbox.runner import runner_source

LAYOUT: Final = "3"
# Standard library that environments may import, and what those import late.
MODULES: Final = (  # noqa: SIM905 - a list of words reads better
    "random math string re json collections collections.abc dataclasses itertools functools enum typing heapq bisect copy "
    "textwrap statistics fractions decimal operator abc __future__ "
    "array struct resource signal time _socket _json _ctypes encodings.utf_8 encodings.ascii encodings.latin_1 encodings.idna "
    "encodings.aliases contextlib warnings weakref types numbers reprlib keyword copyreg traceback linecache tokenize "
    "unicodedata _statistics _datetime datetime"
).split()
# Packages that a recipe may allow, each with the parts of it that are loaded late.
PACKAGES: Final = {
    "numpy": ("numpy", "numpy.random", "numpy.linalg", "numpy.fft", "numpy.polynomial", "numpy.ma"),
    "gymnasium": ("gymnasium", "gymnasium.spaces", "gymnasium.utils.seeding", "gymnasium.envs.registration", "numpy.random"),
}
_LIST_MODULES: Final = """
import importlib, json, sys
sys.path.extend(json.loads(sys.argv[1]))
for name in sys.argv[2:]:
    importlib.import_module(name)
files = sorted({m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)})
maps = sorted({line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/" in line})
print(json.dumps({"files": files, "maps": maps, "sites": json.loads(sys.argv[1]), "binary": sys.executable}))
"""


def default_cache_dir() -> Path:
    """Where roots are kept: the user's cache, or /var/cache where another uid could not reach that (a 0700 home)."""
    home_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spade" / "jail"
    if os.geteuid() != 0 or _reachable_by_others(home_cache):
        return home_cache
    return Path("/var/cache/spade/jail")


def build_root(cache_dir: Path, packages: Sequence[str] = ()) -> Path:
    """The root for this interpreter with these of PACKAGES, under `cache_dir`; built where it is not there yet. Several processes
    may race."""
    seen = _see_modules(packages)
    target = cache_dir / f"{ROOT}{_digest(seen)}"
    if target.is_dir():
        return target
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        building = Path(tempfile.mkdtemp(prefix=BUILDING, dir=cache_dir))
    except OSError as error:
        raise SandboxError(f"the jail's root can't be built in {cache_dir}: {error.strerror}", "Set XDG_CACHE_HOME") from error
    held = lock_shared(building)
    try:
        _fill(building, seen)
        building.chmod(0o755)
        try:
            building.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    except OSError as error:
        fix = "Free space or set XDG_CACHE_HOME"
        raise SandboxError(f"the jail's root can't be built in {cache_dir}: {error}", fix) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
        if held >= 0:
            os.close(held)
    return target


def _reachable_by_others(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.parents if parent.exists())


def _see_modules(packages: Sequence[str]) -> dict[str, list[str]]:
    """What a bare interpreter loads for MODULES and packages: python files, mapped objects, the packages' folders, the binary."""
    unknown = sorted(set(packages) - PACKAGES.keys())
    if unknown:
        raise SandboxError(f"no environment may import {', '.join(unknown)}", f"Allow some of {', '.join(PACKAGES)}, or none")
    binary = getattr(sys, "_base_executable", sys.executable)
    modules = [*MODULES, *(module for package in sorted(set(packages)) for module in PACKAGES[package])]
    sites = json.dumps(sorted({str(_site_of(package)) for package in packages}))
    command = [binary, "-I", "-S", "-c", _LIST_MODULES, sites, *modules]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SandboxError(f"{binary} can't list its modules: {done.stderr.decode(errors='replace')[-200:]}")
    found = json.loads(done.stdout)
    return {key: value if isinstance(value, list) else [value] for key, value in found.items()}


def _site_of(package: str) -> Path:
    """The folder that a package is installed in."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SandboxError(f"{package} is allowed to environments, but is not installed", f"Install it, or leave out {package}")
    return Path(spec.submodule_search_locations[0]).parent


def _digest(seen: dict[str, list[str]]) -> str:
    digest = hashlib.sha256()
    digest.update("\0".join([LAYOUT, sys.version, json.dumps(seen, sort_keys=True)]).encode())
    for text in (runner_source(), Path(__file__).read_text(encoding="utf-8")):
        digest.update(text.encode())
    for name in [*seen["files"], *seen["maps"]]:
        if Path(name).is_file():
            status = Path(name).stat()
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _fill(root: Path, seen: dict[str, list[str]]) -> None:
    """Binary to /bin, shared objects to /lib (the loader to its own path), modules as compiled files to /lib/python3.11, packages
    beside them with the shared objects that they bring."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = root / "lib" / version
    (library / "lib-dynload").mkdir(parents=True)
    (root / "bin").mkdir()
    binary = Path(seen["binary"][0]).resolve()
    _copy(binary, root / "bin" / "python3")
    # the packages' folders first: they may lie within the standard library's
    bases = [*map(Path, seen["sites"]), Path(os.__file__).parent]
    for name in seen["files"]:
        path = Path(name)
        if path.suffix == ".py":
            # packages change docstrings while they are imported
            package = any(path.is_relative_to(site) for site in seen["sites"])
            _compile(path, (library / _relative(path, bases)).with_suffix(".pyc"), 0 if package else 2)
    _compile(Path(os.__file__), library / "os.pyc")
    place_runner(runner_source(), library / "spade_runner.pyc")
    for mapped in seen["maps"]:
        path = Path(mapped)
        if not path.is_file() or path.resolve() == binary or ".so" not in path.name:
            continue
        if path.parent.name == "lib-dynload":
            _copy(path, library / "lib-dynload" / path.name)
        elif any(path.is_relative_to(site) for site in seen["sites"]):
            _copy(path, library / _relative(path, bases))
        else:
            # the mapped name is the file's own; the loader asks for the link that bears the library's version
            for name in {path.name, *(link.name for link in path.parent.glob(f"{path.name.split('.so')[0]}.so.*"))}:
                if (path.parent / name).resolve() == path.resolve():
                    _copy(path, root / "lib" / name)
            if path.name.startswith("ld-linux"):
                _copy(path, root / "lib64" / path.name)


def place_runner(source: str, target: Path) -> None:
    """Compiles the runner's text to where the jail imports it from."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "spade_runner.py"
        text.write_text(source, encoding="utf-8")
        _compile(text, target)


def _relative(path: Path, bases: Sequence[Path]) -> Path:
    return path.relative_to(next(base for base in bases if path.is_relative_to(base)))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _compile(source: Path, target: Path, optimize: int = 2) -> None:
    """To byte code, without docstrings and asserts by default: a fifth less to read at each start of a jail."""
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), str(target), dfile=source.name, doraise=True, invalidation_mode=mode, optimize=optimize)
    target.chmod(0o644)
