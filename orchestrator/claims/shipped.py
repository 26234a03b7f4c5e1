"""The claims that come with the package, in `claims/PAPER/NAME.yaml`, and the verdicts that were measured, beside them
in `NAME.json`."""

import contextlib
from pathlib import Path

from pydantic import ValidationError

from orchestrator.claims.file import read_claim
from orchestrator.claims.hypothesis import Claim
from orchestrator.claims.outputs import ClaimVerdict, ListedClaim
from orchestrator.errors import InputError
from orchestrator.problems import Problem, describe, suggestion
from orchestrator.storage.folder import Folder
from orchestrator.storage.places import CLAIM_VERDICT, Places

CLAIMS = Path(__file__).resolve().parents[2] / "claims"


def shipped_claims() -> dict[str, Path]:
    """The files of the shipped claims, by `PAPER/NAME`."""
    return {path.relative_to(CLAIMS).with_suffix("").as_posix(): path for path in sorted(CLAIMS.glob("*/*.yaml"))}


def find_claim(name: str) -> Path:
    """A claim's file by path, or a shipped one by `PAPER/NAME`, also as `claims/PAPER/NAME.yaml`."""
    path, shipped = Path(name).expanduser(), shipped_claims()
    with contextlib.suppress(OSError):  # of a name that no file can have
        if path.is_file():
            return path.resolve()
    key = name.removeprefix("claims/").removesuffix(".yaml").removesuffix(".yml")
    if key in shipped:
        return shipped[key]
    with contextlib.suppress(OSError):
        if path.is_dir():
            raise InputError(Problem(("FILE", name), rule="is a folder; name the file of one claim"))
    hint = suggestion(key, shipped, "orchestrator claim --list")
    raise InputError(Problem(("FILE", name), rule="no such file, and no shipped claim", suggestion=hint))


def measured_verdict(path: Path, claim: Claim) -> ClaimVerdict | None:
    """The verdict that is kept beside a claim's file; None if there is none, or it is of another file."""
    kept = path.with_suffix(".json")
    verdict = _read_verdict(kept.read_bytes() if kept.exists() else None, kept)
    return verdict if verdict is not None and verdict.digest == claim.digest else None


def own_verdict(claim: Claim, places: Places) -> ClaimVerdict | None:
    """The verdict so far of a claim that was run in a storage; None if it was not."""
    folder = Folder(places.claim(claim.key), patient=False)
    return _read_verdict(folder.read(CLAIM_VERDICT), folder.path / CLAIM_VERDICT)


def _read_verdict(content: bytes | None, path: Path) -> ClaimVerdict | None:
    try:
        return None if content is None else ClaimVerdict.model_validate_json(content)
    except ValidationError as error:
        raise InputError(f"{path}: no verdict of this version: {describe(error)}") from None


def listed_claims(places: Places) -> list[ListedClaim]:
    """All shipped claims with their verdicts."""
    return [listed_claim(name, path, places) for name, path in shipped_claims().items()]


def listed_claim(name: str, path: Path, places: Places) -> ListedClaim:
    """A claim with its verdict: that of a storage, or else the one that is kept beside its file."""
    claim = read_claim(path, places.storage)
    of = claim.hypothesis
    return ListedClaim(
        name=name,
        claim=of.claim,
        source=of.source,
        kind=of.kind,
        datasets=list(of.datasets),
        digest=claim.digest,
        verdict=own_verdict(claim, places) or measured_verdict(path, claim),
    )
