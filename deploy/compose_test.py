"""Build and run the compose deployment for real, ask it a question, and look at what each part kept of it.

Run by `make compose-test`, as root, where Debian's docker engine is installed or can be. The engine is private: data,
socket and network settings of its own, gone at the end. The compose file runs unmodified; only the build is told to
use the host's network. The images that no registry provides here are made by `compose-base-images.sh`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compose
import httpx

ROOT = Path(__file__).resolve().parents[1]
BASE_IMAGES = ("python:3.11-slim", "redis:7", "postgres:16")
COMPOSE_BINARY = Path(compose.__file__).parent / "docker-compose"  # its pip wrapper hides the exit code
QUESTION = "What is the capital of France? Answer in one sentence."
GATEWAY = "http://127.0.0.1:4000"
MLFLOW = "http://127.0.0.1:5000"


def main() -> int:
    """Run every step; exit with 0 when each held."""
    if os.geteuid() != 0:
        sys.stderr.write("compose-test starts a docker engine of its own: run it as root\n")
        return 1
    install_engine()
    with docker_engine():
        step("base images", "bash", "deploy/compose-base-images.sh", *BASE_IMAGES)
        with torch_wheel():
            run_compose("-f", "docker-compose.yml", "-f", "deploy/compose.test.yml", "build")
        try:
            run_compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", "240")
            check_deployment()
        except Exception:
            run_compose("logs", "--tail", "60")
            raise
        finally:
            run_compose("down", "--volumes", "--timeout", "60")
    print("the compose deployment answered through every part")
    return 0


def install_engine() -> None:
    """Install what the machine lacks."""
    needed = {"dockerd": "docker.io", "iptables": "iptables", "mmdebstrap": "mmdebstrap"}
    missing = [package for command, package in needed.items() if shutil.which(command) is None]
    if missing:
        step("apt update", "apt-get", "update", "-qq")
        step("apt install", "apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


@contextlib.contextmanager
def docker_engine() -> Iterator[None]:
    """Run a docker engine that shares the host's network namespace for builds and changes no firewall rule.

    Where DOCKER_HOST names an engine, that one is used and left alone.
    """
    if os.environ.get("DOCKER_HOST"):
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="lamina-docker-", dir=os.environ.get("LAMINA_DOCKER_DATA")))
    os.environ["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
    options = ["--iptables=false", "--ip6tables=false", "--bridge=none", "--ip-forward=false"]
    places = ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "-p", str(folder / "pid")]
    network = ["--default-address-pool", "base=10.201.0.0/16,size=24", "-H", os.environ["DOCKER_HOST"]]
    with (folder / "log").open("w") as log:
        engine = subprocess.Popen(["dockerd", *options, *places, *network], stdout=log, stderr=log)
    try:
        wait_until(lambda: (folder / "docker.sock").exists() and quiet("docker", "version"), "the docker engine", 60)
        yield
    finally:
        engine.send_signal(signal.SIGTERM)
        engine.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def torch_wheel() -> Iterator[None]:
    """Lend the image's build torch's CPU wheel from this machine's wheel folder, if it has one."""
    folders = [Path(name) for name in os.environ.get("PIP_FIND_LINKS", "").split() if Path(name).is_dir()]
    wheels = [wheel for folder in folders for wheel in folder.glob("torch-2.13.0*.whl")]
    lent = [Path(shutil.copy(wheel, ROOT / "deploy" / "wheels")) for wheel in wheels]
    if lent:
        os.environ["TORCH_BACKEND"] = ""
    try:
        yield
    finally:
        for wheel in lent:
            wheel.unlink()


def check_deployment() -> None:
    """Ask twice, then find the answer in Redis, the records in Postgres and the traces in MLflow."""
    key = run_compose("exec", "-T", "gateway", "cat", "/data/master.key").strip()
    first, second = ask(key), ask(key)
    text = first.json()["choices"][0]["message"]["content"]
    expect("Paris" in text, f"the engine answered {text!r}")
    expect(second.headers["x-lamina-cache"] == "exact", f"the repeat was {second.headers['x-lamina-cache']}")
    expect(httpx.post(f"{GATEWAY}/v1/chat/completions", json=body()).status_code == 401, "no key, no 401")
    keys = run_compose("exec", "-T", "redis", "redis-cli", "dbsize")
    expect(int(keys.split()[-1]) > 0, "Redis holds no entry")
    ids = [reply.headers["x-lamina-call"] for reply in (first, second)]
    wait_until(lambda: all(in_postgres(one) for one in ids), "both records in Postgres", 30)
    wait_until(lambda: num_traces() >= len(ids), "both traces in MLflow", 60)


def ask(key: str) -> httpx.Response:
    """Send the question."""
    headers = {"authorization": f"Bearer {key}"}
    reply = httpx.post(f"{GATEWAY}/v1/chat/completions", json=body(), headers=headers, timeout=120)
    expect(reply.status_code == 200, f"status {reply.status_code}: {reply.text}")
    print(reply.headers["x-lamina-cache"], reply.json()["choices"][0]["message"]["content"])
    return reply


def body() -> dict[str, Any]:
    """Write the request."""
    message = {"role": "user", "content": QUESTION}
    return {"model": "smollm2-135m-instruct", "messages": [message], "temperature": 0, "max_tokens": 40}


def in_postgres(call_id: str) -> bool:
    """Tell whether the call's record has arrived; the table comes with the first one."""
    if not in_sql("select to_regclass('calls')"):
        return False
    return in_sql(f"select count(*) from calls where id = '{call_id}'") == "1"


def in_sql(query: str) -> str:
    """Return the one value that a query of Postgres gives."""
    command = ("exec", "-T", "postgres", "psql", "-h", "127.0.0.1", "-U", "lamina", "-d", "lamina", "-Atc", query)
    return run_compose(*command).strip()


def num_traces() -> int:
    """Count the traces in MLflow's experiment `lamina`."""
    found = httpx.get(f"{MLFLOW}/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": "lamina"})
    if found.status_code != httpx.codes.OK:
        return 0
    experiment = {"experiment_id": found.json()["experiment"]["experiment_id"]}
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": experiment}
    search = httpx.post(f"{MLFLOW}/api/3.0/mlflow/traces/search", json={"locations": [place], "max_results": 100})
    return len(search.json().get("traces", []))


def run_compose(*args: str) -> str:
    """Run the real Compose v2; returns what it printed to stdout."""
    return step("compose " + " ".join(args[:4]), str(COMPOSE_BINARY), *args)


def step(name: str, *command: str) -> str:
    """Run a command in the checkout and say how long it took; raises where it fails."""
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(f"{time.monotonic() - begun:6.1f} s  {name}", flush=True)
    if done.returncode != 0:
        sys.stderr.write(done.stdout)
        raise SystemExit(f"{name} failed with {done.returncode}")
    if name.startswith("compose logs"):
        sys.stderr.write(done.stdout)
    return done.stdout


def quiet(*command: str) -> bool:
    """Tell whether a command succeeds."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Wait for a condition; raises with its name when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not there after {timeout_s:g} s")
        time.sleep(0.5)


def expect(holds: bool, otherwise: str) -> None:
    """Raise with a message where a claim does not hold."""
    if not holds:
        raise AssertionError(otherwise)


if __name__ == "__main__":
    sys.exit(main())
