"""What a GPU machine without a network lacks: a folder of wheels for `make gpu WHEELS=folder`, small enough to carry.

    make gpu-wheels                                  into build/gpu-wheels, for Python 3.12
    make gpu-wheels GPU_PYTHON=3.11 ALSO="timm"      for another Python; with more packages

It fetches those of CARRIED, in the versions of uv.lock, and refuses if they and the tracked files together are more
than MOST. Ray is not among them, since its wheel alone is larger; where the machine has none, its part is left out.
"""

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARRIED = (
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "typing-extensions"),
    "ruamel-yaml",
)
"""What a training imports and a machine with torch, torchvision, numpy, scipy, pyarrow and Pillow may lack."""
MOST = 60_000_000
"""Bytes that may have to be carried."""
GLIBC = (17, 24, 27, 28, 31, 34)
"""Of manylinux_2_N: pip takes each by its name only."""


def tracked(root: Path = ROOT) -> int:
    """Bytes of the files that git tracks."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=True)
    return sum(path.stat().st_size for name in listed.stdout.split("\0") if name and (path := root / name).is_file())


def check_size(wheels: Path, files: int) -> str:
    """How much is to be carried; SystemExit if it is too much."""
    sizes = {path.name: path.stat().st_size for path in sorted(wheels.glob("*.whl"))}
    whole = f"{files / 1e6:.1f} MB of tracked files and {sum(sizes.values()) / 1e6:.1f} MB in {len(sizes)} wheels"
    if files + sum(sizes.values()) > MOST:
        largest = max(sizes, key=lambda name: sizes[name], default="none")
        sys.exit(f"{wheels}: {whole}: more than the {MOST / 1e6:.0f} MB that can be carried; the largest: {largest}")
    return whole


def locked(names: list[str]) -> list[str]:
    """The packages in the versions of uv.lock."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    versions = {package["name"]: package["version"] for package in packages if "version" in package}
    if unknown := [name for name in names if name not in versions]:
        sys.exit(f"not in uv.lock: {', '.join(unknown)}")
    return [f"{name}=={versions[name]}" for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the GPU machine")
    parser.add_argument("--also", nargs="*", default=[], help="more packages")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for old in arguments.folder.glob("*.whl"):
        old.unlink()
    platforms = [word for number in GLIBC for word in ("--platform", f"manylinux_2_{number}_x86_64")]
    kind = ["--only-binary=:all:", "--no-deps", "--python-version", arguments.python, "--implementation", "cp"]
    where = [*platforms, "--platform", "manylinux2014_x86_64", "--dest", str(arguments.folder)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *kind, *where]
    if failed := subprocess.run([*command, *locked([*CARRIED, *arguments.also])], check=False).returncode:
        sys.exit(failed)
    print(f"{arguments.folder}: {check_size(arguments.folder, tracked())}; use it with: make gpu WHEELS=...")


if __name__ == "__main__":
    main()
