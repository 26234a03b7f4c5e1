"""The command that looks at the machine: doctor."""

import typer

from orchestrator.cli.options import DEFAULT_STORAGE, Address, Json, Storage, TrackingUri
from orchestrator.cli.output import print_json
from orchestrator.cli.terminal import echo


def doctor(
    storage: Storage = DEFAULT_STORAGE,
    address: Address = None,
    tracking_uri: TrackingUri = None,
    json_: Json = False,
) -> None:
    """Check this machine, its packages and the servers of a search, and say what to do.

    Exit code 1 if there is a problem, 0 if there are warnings only. Nothing is started or changed.

    - `orchestrator doctor`

    - `orchestrator doctor --address HEAD:6379 --tracking-uri http://mlflow:5000 --storage /shared/runs`
    """
    from orchestrator.search.doctor import Fitness, Site, diagnose

    diagnoses = []
    for diagnosis in diagnose(Site(storage, address, tracking_uri)):
        diagnoses.append(diagnosis)
        if not json_:
            remedy = f"\n         -> {diagnosis.remedy}" if diagnosis.remedy else ""
            echo(f"{diagnosis.state:<8} {diagnosis.about}: {diagnosis.fact}{remedy}")
    fit = all(diagnosis.state != "problem" for diagnosis in diagnoses)
    if json_:
        print_json(Fitness(fit=fit, diagnoses=diagnoses))
    raise typer.Exit(0 if fit else 1)
