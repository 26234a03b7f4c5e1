"""What is shipped to deploy is what the tools accept, and says what the documents say."""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orchestrator.execution import preemption

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGE = f"{PROJECT['name']}:{PROJECT['version']}"


def load(name: str) -> list[Any]:
    """The documents of a YAML file."""
    return list(YAML(typ="safe", pure=True).load_all((DEPLOY / name).read_text(encoding="utf-8")))


def test_ray_up_takes_its_cluster() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    (cluster,) = load("ray_cluster.yaml")
    validate_config(prepare_config(cluster))
    for starts in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "RAY_AUTH_MODE=token" in cluster[starts][-1]
    assert "--dashboard-host=127.0.0.1" in cluster["head_start_ray_commands"][-1]
    assert "~/.ray/auth_token" in cluster["file_mounts"]


def test_the_ray_job_is_whole() -> None:
    import ray

    job, claim = load("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == ray.__version__
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["image"] == IMAGE
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
            assert container["securityContext"]["runAsNonRoot"] is True
        assert volumes["storage"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    workers = cluster["workerGroupSpecs"][0]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    secret = [entry for entry in groups[0]["template"]["spec"]["containers"][0]["env"] if "PASSWORD" in entry["name"]]
    assert secret and all("value" not in entry for entry in secret)


def test_a_pod_that_goes_lets_its_trainings_go_on(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Within the time that it has."""
    (spot,) = [
        g for g in load("rayjob.yaml")[0]["spec"]["rayClusterSpec"]["workerGroupSpecs"] if g["groupName"] == "spot"
    ]
    pod = spot["template"]["spec"]
    python, dash, module, *arguments = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert (python, dash, module) == ("python", "-m", preemption.__name__)
    waited: dict[float, int] = {}
    monkeypatch.setattr(preemption, "leave_cluster", lambda seconds: waited.setdefault(seconds, 0))
    preemption.main(arguments)
    assert 0 < max(waited) < pod["terminationGracePeriodSeconds"]
    assert "all trainings here have written a checkpoint" in capsys.readouterr().out


def test_the_ray_job_resumes_what_it_finds(tmp_path: Path) -> None:
    """Its command, with a storage of ours and an `orchestrator` that says what it was told."""
    (tmp_path / "bin").mkdir()
    told = tmp_path / "bin" / "orchestrator"
    told.write_text('#!/bin/sh\necho "$1"\n')
    told.chmod(0o755)
    command = load("rayjob.yaml")[0]["spec"]["entrypoint"].replace("/storage", str(tmp_path))
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def run() -> str:
        return subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True).stdout.strip()

    assert run() == "search"
    (tmp_path / "searches" / "pfml").mkdir(parents=True)
    (tmp_path / "searches" / "pfml" / "journal.jsonl").touch()
    assert run() == "resume"


def test_the_services_are_closed_and_hold_no_secret() -> None:
    (compose,) = load("compose.yaml")
    services = compose["services"]
    for name, service in services.items():
        assert re.fullmatch(r"\S+:\d[\w.-]*", service["image"]), f"{name}: a pinned image"
        assert set(service.get("secrets", [])) <= compose["secrets"].keys()
        assert set(service.get("depends_on", {})) <= services.keys()
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in compose["volumes"]
        for port in service.get("ports", []):
            assert port.startswith("${MLFLOW_BIND:-127.0.0.1}:"), f"{name}: beyond the loopback only if asked"
    assert [name for name, service in services.items() if "ports" in service] == ["mlflow"]
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert not re.search(r"(?i)(password|secret_key|secret)[\w]*: *[\"']?(?!/run/secrets|\{file)[A-Za-z0-9]{4,}", text)
    command = services["mlflow"]["command"][-1]
    assert "--app-name basic-auth" in command and "--ssl-certfile" in command and "--allowed-hosts" in command
    assert services["mlflow"]["image"] == IMAGE == services["bucket"]["image"]


def test_the_commands_of_the_services_exist() -> None:
    """MLflow knows every option that its service is given."""
    from mlflow.cli import server

    (compose,) = load("compose.yaml")
    known = {option for parameter in server.params for option in parameter.opts}
    given = set(re.findall(r"(--[a-z-]+)(?= )", compose["services"]["mlflow"]["command"][-1].partition("server")[2]))
    assert given >= {"--host", "--app-name"} and given - {"--ssl-certfile", "--ssl-keyfile"} <= known


def test_the_image_is_built_of_what_is_here() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    let_in = set((DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split())
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists() and f"!{source}" in let_in, source
    assert any(re.match(r"FROM python:3\.1[123]", line) for line in lines)
    users = [line.split()[1] for line in lines if line.startswith("USER")]
    assert users and users[-1] != "root"
    (sync,) = [line for line in lines if "uv sync" in line]
    assert "--frozen" in sync and "--extra server" in sync
    assert "server" in PROJECT["optional-dependencies"]


SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/usr/bin/env bash
if [[ $1 == show ]]; then echo 127.0.0.1; else echo "$@" >> "$SLURM_NOTES"; fi
"""
ORCHESTRATOR = """#!/usr/bin/env bash
printf '%s\\n' "$1 $RAY_AUTH_MODE $(stat -c %a "$RAY_AUTH_TOKEN_PATH")" >> "$SLURM_NOTES"
python -c 'import ray; ray.init(address="auto", log_to_driver=False); print(len(ray.nodes()))' >> "$SLURM_NOTES"
mkdir -p "$ORCHESTRATOR_STORAGE/searches/mine"
touch "$ORCHESTRATOR_STORAGE/searches/mine/journal.jsonl"
[[ $1 == resume ]] || exit 130
"""


JOINED = """#!/usr/bin/env bash
echo "$@" >> "$SLURM_NOTES"
if [[ $1 == search ]]; then
  mkdir -p "$ORCHESTRATOR_STORAGE/searches/mine" && touch "$ORCHESTRATOR_STORAGE/searches/mine/journal.jsonl"
  touch begun && [[ ! -e asked ]] || exit 0
  exec sleep 60
fi
while [[ ! -e begun ]]; do sleep 0.01; done
[[ ! -e asked ]] || exit 0
touch asked
trap 'exit 130' TERM
kill -TERM $PPID  # as SLURM does a minute before the time is up
while :; do sleep 0.01; done
"""


@pytest.mark.parametrize("name", ["search.slurm", "array.slurm", "join.slurm"])
def test_the_slurm_scripts_are_well_formed(name: str) -> None:
    script = DEPLOY / name
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(script)], check=True)
    directives = [line for line in script.read_text(encoding="utf-8").splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --requeue" in directives and any("--signal=B:" in line for line in directives)


def test_the_tasks_of_an_array_join_and_go_on_when_they_are_requeued(tmp_path: Path) -> None:
    """The first task begins the search too. Told to end, it is requeued, and then it only joins."""
    venv = tmp_path / ".venv" / "bin"
    venv.mkdir(parents=True)
    for tool, text in {"scontrol": SCONTROL, "orchestrator": JOINED}.items():
        (venv / tool).write_text(text)
        (venv / tool).chmod(0o755)
    notes = tmp_path / "notes"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "ORCHESTRATOR_", "SLURM_"))}
    environment |= {"SLURM_NOTES": str(notes), "SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_MIN": "0"}
    joins = f"work {tmp_path / 'runs'} --search mine --idle 600"
    begins = "search pfml --num-trials 2 --name mine --address storage"
    for task, code, said in (("0", 130, {begins, joins, "requeue 7"}), ("0", 0, {joins}), ("1", 0, {joins})):
        done = subprocess.run(
            ["bash", str(DEPLOY / "join.slurm"), "mine", "pfml", "--num-trials", "2"],
            cwd=tmp_path,
            env=environment | {"SLURM_ARRAY_TASK_ID": task},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, set(notes.read_text().splitlines())) == (code, said), done.stderr
        notes.unlink()


SEARCHES = """#!/usr/bin/env bash
echo "$@" >> "$NOTES"
folder=$ORCHESTRATOR_STORAGE/searches
[[ $1 != status ]] || { [[ -e $folder/$2 ]]; exit; }
[[ $1 != resume ]] || exit 0
while [[ $1 != --name ]]; do shift; done
trap 'echo told >> "$NOTES"; exit 130' TERM
mkdir -p "$folder/$2" && touch "$folder/$2/journal.jsonl"
while :; do /bin/sleep 0.05; done
"""


@pytest.fixture
def standins(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """An environment in which `orchestrator`, which searches until it is told to stop, and these tools stand in."""

    def install(**tools: str) -> dict[str, str]:
        bin_folder = tmp_path / ".venv" / "bin"
        bin_folder.mkdir(parents=True)
        for name, text in {"orchestrator": SEARCHES, **tools}.items():
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
        path = f"{bin_folder}:{os.environ['PATH']}"
        return os.environ | {"PATH": path, "NOTES": str(tmp_path / "notes"), "ORCHESTRATOR_STORAGE": str(tmp_path)}

    return install


def until_there(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.02)


def test_a_task_of_a_slurm_array_is_requeued_and_goes_on(tmp_path: Path, standins: Callable[..., Any]) -> None:
    """SIGTERM to the script alone, as SLURM sends it where `--signal` begins with B."""
    script = DEPLOY / "array.slurm"
    assert "#SBATCH --signal=B:TERM" in script.read_text(encoding="utf-8")
    notes = tmp_path / "notes"
    environment = standins(scontrol='#!/bin/sh\necho "$@" >> "$NOTES"\n')
    environment |= {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_JOB_ID": "70"}
    command = ["bash", str(script), "first", "pfml", "margin"]
    task = subprocess.Popen(command, cwd=tmp_path, env=environment)
    until_there(tmp_path / "searches" / "first-2" / "journal.jsonl")
    task.terminate()
    assert task.wait(30) == 130
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == 0
    said = ["search margin --name first-2 --address local", "told", "requeue 70_2", "resume first-2 --address local"]
    assert notes.read_text().splitlines() == said
    none = subprocess.run(command[:-1], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert none.returncode != 0 and "a space for each task" in none.stderr


def test_a_spot_machine_is_told_before_it_goes(tmp_path: Path, standins: Callable[..., Any]) -> None:
    (task,) = load("sky.yaml")
    assert task["resources"]["use_spot"] is True and set(task["envs"]) == {"ORCHESTRATOR_STORAGE", "NAME", "SPACE"}
    curl = '#!/bin/sh\ncase "$*" in *google*) test -e "$NOTES.goes" && echo TRUE;; *) exit 22;; esac\n'
    wait = '#!/bin/sh\ncase $1 in infinity) echo waits >> "$NOTES";; *) exec /bin/sleep 0.05;; esac\n'
    environment = standins(curl=curl, sleep=wait) | {"NAME": "pfml", "SPACE": "pfml"}
    run = subprocess.Popen(["bash", "-c", task["run"]], cwd=tmp_path, env=environment)
    until_there(tmp_path / "searches" / "pfml" / "journal.jsonl")
    (tmp_path / "notes.goes").touch()
    assert run.wait(30) == 0
    (tmp_path / "notes.goes").unlink()
    assert subprocess.run(["bash", "-c", task["run"]], cwd=tmp_path, env=environment, check=False).returncode == 0
    said = ["status pfml", "search pfml --name pfml", "told", "waits", "status pfml", "resume pfml"]
    assert (tmp_path / "notes").read_text().splitlines() == said


@pytest.mark.slow
def test_the_slurm_script_starts_requeues_and_resumes(tmp_path: Path) -> None:
    """On one node that is this machine, with a scheduler that does as it is told."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    venv = tmp_path / ".venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "orchestrator").write_text(ORCHESTRATOR)
    (venv / "orchestrator").chmod(0o755)
    for name in ("python", "ray"):
        (venv / name).write_text(f'#!/bin/sh\nexec {Path(sys.executable).parent / name} "$@"\n')
        (venv / name).chmod(0o755)
    notes = tmp_path / "notes"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "ORCHESTRATOR_"))}
    environment |= {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_NOTES": str(notes), "HOME": str(tmp_path)}
    environment |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "here"}
    for code in (130, 0):
        done = subprocess.run(
            ["bash", str(DEPLOY / "search.slurm"), "mine", "pfml"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stderr
    said = notes.read_text().split("\n")
    assert said == ["search token 600", "1", f"requeue {os.getpid()}", "resume token 600", "1", ""]
    assert not list(tmp_path.glob(".orchestrator-token.*")), "the token goes with the job"


def test_the_version_is_the_newest_release_of_the_changelog() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$", changes, re.MULTILINE)
    assert releases[0] == PROJECT["version"] and len(set(releases)) == len(releases)
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    assert [p["version"] for p in locked if p["name"] == PROJECT["name"]] == [PROJECT["version"]]
    cited = YAML(typ="safe", pure=True).load(ROOT / "CITATION.cff")
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    assert f"## {cited['version']} ({cited['date-released']})" in changes


def test_the_public_checks_are_those_that_run_everywhere() -> None:
    """They call the same commands, on each version of Python that the project declares."""
    jobs = YAML(typ="safe", pure=True).load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands == {"quick": ["make lint", "make test"], "all": [".ci/run"], "versions": ["make versions"]}
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(command in script for command in commands["quick"]) and os.access(ROOT / ".ci" / "run", os.X_OK)
    low, high = (int(minor) for minor in re.findall(r"3\.(\d+)", PROJECT["requires-python"]))
    assert jobs["quick"]["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in range(low, high)]


def test_the_forms_for_issues_ask_what_they_need() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 4
    for form in forms:
        asked = YAML(typ="safe", pure=True).load(form)
        assert form.stem == "config" or {"name", "description", "body"} <= asked.keys()
        for field in asked.get("body", ()):
            assert field["type"] in ("input", "textarea") and field["attributes"]["label"], form.name
            assert field["validations"]["required"] is True
