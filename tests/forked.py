"""The programs of :mod:`tests.fork_server`: its servers, and what stands for a fork."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _modules(package: str) -> str:
    """The import of all modules of a package: each program would import some hundred of them."""
    files = (ROOT / package).rglob("*.py")
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    known = (name.removesuffix(".__init__") for name in names if not name.endswith("__main__"))
    return f"import {', '.join(sorted(filter(_can_be_imported, known)))}\n"


def _can_be_imported(name: str) -> bool:
    return name.replace(".", "").isidentifier()


LIGHT = """
import collections, concurrent.futures.thread, contextlib, csv, ctypes.util, dataclasses, datetime
import email.message, enum, functools, hashlib, importlib.metadata, importlib.resources
import importlib.util, json, logging, re, secrets, shlex, shutil, string, subprocess, tempfile
import threading, tomllib, typing
import pydantic, pydantic.fields, pydantic.types, rich.console, rich.panel, rich.table, rich.text
import typer, yaml
pydantic.BaseModel
""" + _modules("fdl")

TORCH = """
import html, importlib.resources, json, lazy_loader, netrc, numpy.typing, resource, zoneinfo
import pydantic, pydantic.fields, pydantic.types
import torch, torch.distributed.launcher.api, torch.distributed.run, torch.utils.data
pydantic.BaseModel
torch.set_num_threads(1)
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports more than torch itself
""" + _modules("flodl")

SERVER = """
import atexit, contextlib, fcntl, gc, json, os, runpy, select, shutil, signal, socket, sys
import termios, threading, types, weakref

def run(first, arguments):
    sys.argv[:] = [first, *arguments]
    if first == "-m":
        del sys.argv[1]
        sys.path[0] = os.getcwd()
        if not hasattr(sys.modules.get(arguments[0]), "__path__"):
            sys.modules.pop(arguments[0], None)  # a module that runs has not been imported
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        del sys.argv[1]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")

listener = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with those who ask
woken, wakes = os.pipe()
for end in (woken, wakes):
    os.set_blocking(end, False)
signal.set_wakeup_fd(wakes)
signal.signal(signal.SIGCHLD, lambda number, frame: None)
clients = set()  # The processes of tests. The others who ask are programs on a PATH.
running = {}  # Process id -> where to tell how it ended, and who stands for it on a PATH.
of_imports = None

def tell(status, text):
    # Nobody may be left to read it.
    with contextlib.suppress(OSError):
        os.write(status, text)

def reap():
    with contextlib.suppress(BlockingIOError):
        os.read(woken, 4096)
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status, caller = running.pop(ended[0])
            tell(status, b"%d\\n" % os.waitstatus_to_exitcode(ended[1]))
            os.close(status)
            if caller:
                caller.close()

def leave(client):
    clients.remove(client)
    client.close()
    if clients:
        return
    folder = os.path.dirname(listener.getsockname())
    try:
        lock = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # the run of tests has removed all its temporary files
        sys.exit()
    fcntl.flock(lock, fcntl.LOCK_EX)  # as who looks for a server does
    if not select.select([listener], [], [], 0)[0]:
        shutil.rmtree(folder)
        sys.exit()
    os.close(lock)

while True:
    callers = {one: child for child, (_, one) in running.items() if one}
    ready = select.select([woken, listener, *clients, *callers], [], [])[0]
    if woken in ready:
        reap()
        continue
    caller = ready[0]
    if caller in callers:
        # Who stands for the program on somebody's PATH was killed: so is the program.
        os.kill(callers[caller], signal.SIGKILL)
        running[callers[caller]] = (running[callers[caller]][0], None)
        caller.close()
        continue
    if caller is listener:
        caller, _ = listener.accept()
    data, streams, _, _ = socket.recv_fds(caller, 1 << 20, 64)
    if data == b"client":
        clients.add(caller)
        continue
    if not data:
        leave(caller) if caller in clients else caller.close()
        continue
    if of_imports is None:  # nothing is imported before the first program is asked for
        sys.path[0] = ROOT
        exec(IMPORTS, {})
        sys.path[0] = ""
        of_imports = list(weakref.finalize._registry)
        gc.freeze()
    child = os.fork()
    if child == 0:
        break
    *streams, status = streams
    for stream in streams:
        os.close(stream)
    tell(status, b"%d\\n" % child)
    running[child] = (status, None if caller in clients else caller)

signal.set_wakeup_fd(-1)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
*streams, status = streams
for number in (woken, wakes, status, *(one for one, _ in running.values())):
    os.close(number)
for one in (listener, caller, *clients, *(one for _, one in running.values() if one)):
    one.close()
signal.signal(signal.SIGINT, signal.default_int_handler)
request = json.loads(data)
lifted = [fcntl.fcntl(stream, fcntl.F_DUPFD, 100) for stream in streams]
for stream in streams:
    os.close(stream)
for number, stream in zip(request.get("numbers", range(len(lifted))), lifted, strict=True):
    os.dup2(stream, number)
    os.close(stream)
if request["terminal"]:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
os.chdir(request["cwd"])
added = request["env"].get("PYTHONPATH")
if added and added != os.environ.get("PYTHONPATH"):
    sys.path.insert(1, added)
if "multiprocessing.process" in sys.modules:  # it keeps the folder where it was imported
    sys.modules["multiprocessing.process"].ORIGINAL_DIR = os.getcwd()
os.environ.clear()
os.environ.update(request["env"])
if "tempfile" in sys.modules:  # it keeps the folder that it found first
    sys.modules["tempfile"].tempdir = None
flags = request.get("flags", ())
if "-u" in flags:
    sys.stdout.reconfigure(write_through=True)
if "-B" in flags:
    sys.dont_write_bytecode = True
sys.orig_argv[:] = [sys.executable, *request["words"]]
try:
    run(request["words"][0], request["words"][1:])
    code = 0
except SystemExit as end:
    code = end.code or 0
    if not request["abrupt"] or not isinstance(code, int):
        raise
except Exception:
    if not request["abrupt"]:
        raise
    sys.excepthook(*sys.exc_info())
    code = 1
if request["abrupt"]:
    threading._shutdown()
    for one in of_imports:  # torch would take its registered operators apart
        one.atexit = False
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)
"""

# A program on a PATH: asks the server for a fork of itself, then stands for it.
ON_PATH = """
import _thread, json, os, signal, socket, sys

folder = "/proc/self/fd"
numbers = [int(name) for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}")]
numbers = sorted(filter(os.get_inheritable, numbers))  # also those beside the usual three
words = [*FIRST, *sys.argv[1:]]
at_start = {name: value for name, value in os.environ.items() if name.startswith(NAMES)}
at_start.pop("PYTHON_EXEC", None)
if not at_start.get("LD_LIBRARY_PATH"):
    at_start.pop("LD_LIBRARY_PATH", None)
if at_start.get("PYTHONPATH") == ROOT:
    del at_start["PYTHONPATH"]
flags = []
while words[:1] in (["-u"], ["-B"]):  # multiprocessing passes on -B
    flags.append(words.pop(0))
option = not words or words[0].startswith("-") and words[0] not in ("-c", "-m")
if option or at_start != AT_START or numbers[:3] != [0, 1, 2] or any(map(os.isatty, STREAMS)):
    os.execv(REAL, [REAL, *FIRST, *sys.argv[1:]])
# Held back until there is a program to pass them to, then passed on by a thread: a handler would
# wait while the program is read from.
signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(ADDRESS)
reader, writer = os.pipe()
request = {"words": words, "cwd": os.getcwd(), "env": dict(os.environ), "terminal": False}
request |= {"abrupt": True, "flags": flags, "numbers": numbers}
text = json.dumps(request).encode()
server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(text) + 4096)
socket.send_fds(server, [text], [*numbers, writer])
os.close(writer)
status = os.fdopen(reader)
child = int(status.readline())

def pass_on():
    while True:
        number = signal.sigwait(signals)
        try:
            os.kill(child, number)
        except ProcessLookupError:
            pass  # it has just ended by itself

_thread.start_new_thread(pass_on, ())
code = int(status.readline() or 1)  # nothing: all was interrupted
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    signal.raise_signal(-code)
os._exit(code)
"""

# Makes the terminal on stdin the controlling one, as a login does, then becomes Python.
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
further, *words = sys.argv[1:]
for number, stream in enumerate(further.split(), 3):
    os.dup2(int(stream), number)
os.execv(sys.executable, [sys.executable, *words])
"""
