"""Flower's own processes: started with the right flags, watched, and stopped with their parent."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.deployment.keys import Keys
from coterie.errors import RunError, UserError

__all__ = ["FlowerHome", "free_port", "near", "register", "start_server", "start_supernode", "started", "submit", "write_app"]

CONNECTION = "coterie"
GRACE = 10.0
"""Seconds in which a process that was told to stop may do so."""
PATIENCE = 120.0
"""Seconds in which Flower must answer."""
APP = """[project]
name = "coterie-deployment"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "server_side:app"
clientapp = "client_side:app"

[tool.flwr.app.config]
folder = {folder}
deployment = {deployment}
nodes = {nodes}
changed_code = {changed_code}
"""
"""Flower's description of an app: its two ends are a line each, about this package, which is installed everywhere. What to run is in it
as a whole: where the server's side then runs there need be nothing but a place for `folder`."""
SIDE = """from coterie.deployment.{side}_app import {side}_app

app = {side}_app()
"""


class FlowerHome:
    """Where Flower's programs are, and what they are told by the environment.

    >>> FlowerHome(Path("home")).environment["FLWR_HOME"].endswith("home")
    True
    """

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        programs = Path(sys.executable).parent
        self.programs = programs
        self.environment: Mapping[str, str] = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.home),
            **near(os.environ),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1"),
        }

    def start(self, program: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        """One of Flower's programs, in a process group of its own that ends with this process."""
        path = self.programs / program
        if not path.exists():
            raise UserError("coterie deploy needs Flower: pip install 'coterie[flower]'")
        self.home.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            command = [str(path), *arguments]
            return subprocess.Popen(
                command,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def call(self, *arguments: str) -> str:
        """The command `flwr`, to its end."""
        command = [str(self.programs / "flwr"), *arguments]
        try:
            done = subprocess.run(
                command, env=dict(self.environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"flwr {arguments[0]} does not answer") from None
        if done.returncode:
            raise RunError(f"flwr {' '.join(arguments[:2])} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout


def near(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables by which a proxy, if there is one, is not asked for what is on this machine: Flower's processes speak HTTP to each other.

    >>> near({"no_proxy": "intranet"})["NO_PROXY"]
    'intranet,127.0.0.1,localhost'
    """
    known = environment.get("no_proxy") or environment.get("NO_PROXY")
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(filter(None, (known, "127.0.0.1,localhost"))))


def _end_with_parent() -> None:
    """Ask the kernel to end this process with its parent, however that ends; elsewhere than on Linux only a clean stop does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextmanager
def started(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process, which is gone afterwards, and with it all that it has started."""
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """See to it that a process and its group are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on.

    >>> free_port() > 1024
    True
    """
    with socket.socket() as end:
        end.bind((host, 0))
        return int(end.getsockname()[1])


def start_server(flower: FlowerHome, host: str, port: int, keys: Keys | None, names: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A SuperLink that lets in whom it has the keys of; without keys, anybody."""
    where = ["--host", host, "--port", str(port), "--disable-runtime-dependency-installation"]
    if keys is None:
        process = flower.start("flower-superlink", *where, "--insecure", log=log)
    else:
        keys.need(keys.ca, keys.certificate, keys.key, *map(keys.public, names))
        secure = ["--ssl-ca-certfile", str(keys.ca), "--ssl-certfile", str(keys.certificate), "--ssl-keyfile", str(keys.key)]
        process = flower.start("flower-superlink", *where, *secure, "--enable-supernode-auth", log=log)
    near = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    try:
        _describe(flower, near, port, keys)
        _answers(process, near, port, log)
    except BaseException:
        stop(process)
        raise
    return process


def register(flower: FlowerHome, keys: Keys | None, names: Sequence[str]) -> dict[str, int]:
    """Tell the SuperLink the participants' keys; the node that each key is from then on. Without keys nobody is known."""
    if keys is None:
        return {}
    said = {name: flower.call("supernode", "register", str(keys.public(name)), CONNECTION, "--format", "json") for name in names}
    return {name: int(json.loads(text)["node-id"]) for name, text in said.items()}


def _describe(flower: FlowerHome, host: str, port: int, keys: Keys | None) -> None:
    """Tell `flwr` where the SuperLink is."""
    secure = "insecure = true" if keys is None else f"root-certificates = {json.dumps(str(keys.ca.absolute()))}"
    flower.home.mkdir(parents=True, exist_ok=True)
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{host}:{port}"\n{secure}\n'
    (flower.home / "config.toml").write_text(text, encoding="utf-8")


def _answers(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    """Wait until somebody listens."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RunError(f"Flower's SuperLink has ended: {_tail(log)}")
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.1)
    raise RunError(f"Flower's SuperLink does not answer; see {log}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-800:]


def write_app(app: Path, folder: Path, deployment: str, nodes: Mapping[str, int], changed_code: bool = False) -> None:
    """Write a deployment as an ordinary Flower app: a folder for `flwr run`.

    Args:
        app: where to write it.
        folder: where its server's side is to write, on the machine where that will run.
        deployment: what to run, as `Deployment.text` has it.
        nodes: which of Flower's nodes each participant must come from; those without an entry may come from any.
        changed_code: whether a run may go on with other code than it was begun with.

    >>> import tempfile
    >>> app = Path(tempfile.mkdtemp())
    >>> write_app(app, Path("/srv/run"), "{}", {"north": 7})
    >>> (app / "pyproject.toml").read_text().splitlines()[-4:]
    ['folder = "/srv/run"', 'deployment = "{}"', 'nodes = "north=7"', 'changed_code = false']
    """
    app.mkdir(parents=True, exist_ok=True)
    bound = ",".join(f"{name}={node}" for name, node in nodes.items())
    values = {"folder": str(folder.absolute()), "deployment": deployment, "nodes": bound, "changed_code": changed_code}
    (app / "pyproject.toml").write_text(APP.format(**{key: json.dumps(value) for key, value in values.items()}), encoding="utf-8")
    for side in ("server", "client"):
        (app / f"{side}_side.py").write_text(SIDE.format(side=side), encoding="utf-8")


def submit(flower: FlowerHome) -> None:
    """Have the SuperLink run the app in this home."""
    flower.call("run", str(flower.home / "app"), CONNECTION)


def start_supernode(
    flower: FlowerHome, server: str, keys: tuple[Path, Path] | None, port: int, secret: Path, log: Path
) -> subprocess.Popen[bytes]:
    """A SuperNode that connects to a server: with the authority that vouches for it and a private key, or insecurely.

    It runs nothing itself: who knows the secret fetches its messages at a port of this machine.
    """
    own = ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port), "--superexec-auth-secret-file", str(secret)]
    secure = ["--insecure"] if keys is None else ["--root-certificates", str(keys[0]), "--auth-supernode-private-key", str(keys[1])]
    return flower.start("flower-supernode", "--superlink", server, *own, *secure, log=log)
