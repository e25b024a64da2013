"""What a student's process may do: limits, a scratch folder, only the files that a lab needs, no network.

Everything is asked of the system without privileges and stays in force until the process and all its children end:

* files: Landlock (Linux 5.13 and later) allows a list of places. The rest of the repository (solutions/, its history),
  the exercises' references and the home folder aren't among them;
* network: a network namespace with nothing but the loopback device; where user namespaces are switched off, Landlock's
  rule for TCP (Linux 6.7);
* memory, file size, processor time: rlimits.

Where the system lacks one of them, hooks in Python do the same for Python code, and for nothing else: ``confine`` says what
holds, and the report of a class repeats it.

Sources: the kernel's Documentation/userspace-api/landlock.rst; user_namespaces(7); netdevice(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import onegpu

PACKAGE = Path(onegpu.__file__).resolve().parent

# The system calls' numbers are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES, _SIGNAL_WITH_PARENT = 38, 1
# struct landlock_ruleset_attr: handled_access_fs, handled_access_net, scoped. Bits by version of the interface.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FILE_BITS = {1: 13, 2: 14, 3: 15, 5: 16}
_TCP = 0b11  # bind, connect; version 4
_SCOPES = 0b11  # abstract sockets, signals; version 6
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15  # the rights that a single file can have
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000


@dataclass(frozen=True)
class Confinement:
    """What holds for a student's process.

    Attributes
    ----------
    files
        "kernel" (Landlock), or "python": only Python code is kept from the files that it must not read.
    network
        "kernel" (nothing but this machine's loopback, or no TCP), or "python".
    memory
        Whether the limit of memory is in force.
    """

    files: str
    network: str
    memory: bool

    def __str__(self) -> str:
        held = {"kernel": "kept off by the system", "python": "kept off for Python code only"}
        return (
            f"other files {held.get(self.files, 'not kept off')}, "
            f"network {held.get(self.network, 'not kept off')}, "
            f"memory {'limited' if self.memory else 'not limited'}"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the fields, for JSON."""
        return asdict(self)


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment of a student's process: what a lab needs, and none of the grader's secrets.

    It is made anew rather than cleaned, so that no token can be forgotten.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    from onegpu.models import cache_folder
    from onegpu.notebooks.execution import ENVIRONMENT

    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "SYSTEMROOT", "TZ") if name in os.environ}
    places = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    home = str(scratch)
    return (
        kept
        | ENVIRONMENT
        | {
            "PATH": os.pathsep.join(places),
            "PYTHONPATH": str(PACKAGE.parent),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": home,
            "USERPROFILE": home,
            "TMPDIR": home,
            "TEMP": home,
            "RAY_TMPDIR": home,
            "IPYTHONDIR": f"{home}/.ipython",
            "MPLCONFIGDIR": f"{home}/.matplotlib",
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "HF_HOME": f"{home}/.huggingface",
            "HF_HUB_CACHE": str(HF_HUB_CACHE),
            "ONEGPU_CACHE": str(cache_folder()),
            "ONEGPU_STRICT": "",
        }
    )


def limit(memory_bytes: int, processor_s: int) -> bool:
    """Set the limits of this process and its children; return whether the one of memory is in force."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return False
    held = False
    # RLIMIT_DATA counts memory that is written to; RLIMIT_AS would also count what torch and Ray only reserve.
    for name, value in (
        ("RLIMIT_CORE", 0),
        ("RLIMIT_CPU", processor_s),
        ("RLIMIT_FSIZE", 2 * 2**30),
        ("RLIMIT_DATA", memory_bytes),
    ):
        _, hard = resource.getrlimit(getattr(resource, name))
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))
            held = held or (name == "RLIMIT_DATA" and sys.platform == "linux")
    return held


def confine(scratch: Path, hidden: Iterable[Path], *, tcp: bool = False) -> tuple[str, str]:
    """Confine this process to what a lab needs; there is no way back.

    Parameters
    ----------
    scratch
        The one folder that it may write to.
    hidden
        Files of the package that it must not read (the exercises' modules, which hold the references).
    tcp
        Whether connections on this machine must work where there are no network namespaces (Ray needs them).

    Returns
    -------
    tuple
        What holds off (files, network): "kernel" or "python".
    """
    if sys.platform == "linux":
        _libc().prctl(_SIGNAL_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    hidden = frozenset(path.resolve() for path in hidden)
    version = _landlock_version()
    alone = _own_network()
    files = version > 0 and _restrict_files(scratch, hidden, version, tcp_too=not alone and not tcp)
    network = "kernel" if alone or (files and not tcp and version >= 4) else "python"
    _hold_python(hidden, files=not files, network=network == "python")
    return "kernel" if files else "python", network


def _landlock_version() -> int:
    """The version of the kernel's Landlock interface, 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _own_network() -> bool:
    """Move into a network of one's own; True if there is nothing outside any more."""
    if sys.platform != "linux":
        return False
    user, group = os.getuid(), os.getgid()
    if _libc().unshare(_NEW_USER | _NEW_NETWORK):
        return False
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # Bring up the loopback device: SIOCGIFFLAGS, SIOCSIFFLAGS with IFF_UP. Ray and debuggers talk over it.
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        import fcntl

        flags = fcntl.ioctl(any_socket, 0x8913, struct.pack("16sH22x", b"lo", 0))
        now = struct.unpack_from("H", flags, 16)[0]
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", b"lo", now | 1))
    return True


def _restrict_files(scratch: Path, hidden: frozenset[Path], version: int, *, tcp_too: bool) -> bool:
    libc = _libc()
    count = max(bits for since, bits in _FILE_BITS.items() if version >= since)
    everything = (1 << count) - 1
    attributes = struct.pack(
        "QQQ", everything, _TCP if tcp_too and version >= 4 else 0, _SCOPES if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    read = _EXECUTE | _READ_FILE | _READ_DIR
    try:
        for path, rights in [
            *((p, everything) for p in (scratch, Path("/dev/shm"))),
            *((p, read | _WRITE_FILE) for p in _devices()),
            *((p, read) for p in _readable(hidden)),
        ]:
            _allow(libc, ruleset, path, rights)
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            return False
        return libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= _ON_FILES
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), ctypes.c_uint32(0))
    finally:
        os.close(place)


def _devices() -> list[Path]:
    return [Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom", "tty")]


def _readable(hidden: frozenset[Path]) -> Iterator[Path]:
    """Places that a lab reads: Python, its packages, the system's libraries, the models. A folder means all below it."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from onegpu.models import cache_folder

    system = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/sys")
    python = {sys.base_prefix, *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "scripts"))}
    packages = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    # A virtual environment may hold the project, or the project it: only its own folders are allowed.
    own = {Path(sys.prefix) / name for name in ("bin", "include", "share", "etc", "pyvenv.cfg")}
    for place in {*map(Path, system), *map(Path, python), *own, Path(HF_HUB_CACHE), cache_folder()}:
        yield from _without(place.resolve(), hidden)
    for place in {*map(Path, packages), PACKAGE}:
        yield from _without(place.resolve(), hidden)


def _without(place: Path, hidden: frozenset[Path]) -> Iterator[Path]:
    """A place, or, where something hidden lies below it, all in it but that."""
    if place in hidden:
        return
    if not any(place in path.parents for path in hidden):
        yield place
    elif place.is_dir():
        for inner in place.iterdir():
            yield from _without(inner.resolve() if inner.is_symlink() else inner, hidden)


def _hold_python(hidden: frozenset[Path], *, files: bool, network: bool) -> None:
    """Keep Python code from the hidden files and the network, where the system can't: a hook that can't be taken off."""
    if not files and not network:
        return
    forbidden = {str(path) for path in hidden}

    def hook(event: str, arguments: tuple) -> None:
        if network and event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
            address = arguments[0] if event == "socket.getaddrinfo" else arguments[-1]
            host = address[0] if isinstance(address, tuple) else address
            if not isinstance(host, str) or not (
                host.startswith(("127.", "/", "\0")) or host in ("localhost", "::1")
            ):
                raise PermissionError(f"no network while a lab is graded: {host!r}")
        if files and event == "open" and isinstance(arguments[0], str):
            path = os.path.realpath(arguments[0])
            if path in forbidden or any(path.startswith(folder + os.sep) for folder in forbidden):
                raise PermissionError(f"not readable while a lab is graded: {Path(path).name}")

    sys.addaudithook(hook)


def hidden_files() -> list[Path]:
    """Return what gives answers away: the exercises' modules, and around a checkout of the repository its solutions."""
    from onegpu.exercises.exercise import TOPICS

    exercises = PACKAGE / "exercises"
    found = [exercises / f"{name}.py" for name in TOPICS.values()]
    found += [
        p for p in (exercises / "__pycache__").glob("*.pyc") if p.name.partition(".")[0] in TOPICS.values()
    ]
    checkout = PACKAGE.parents[1]
    if (checkout / "pyproject.toml").is_file():
        found += [checkout / name for name in ("solutions", "course", "labs", "tests", ".git")]
    return [path for path in found if path.exists()]
