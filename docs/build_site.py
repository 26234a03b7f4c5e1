"""The documentation as a site: the pages of this folder, the project's own, and a reference from the docstrings.

    python docs/build_site.py [--to site]

Zensical builds it; every link between pages is checked. Fonts and scripts are in the site: it needs no network.
Formulas, the blocks ```math of the pages, are MathML, which browsers set without a script or a font of the site. Each
version has a folder of its own, which a later version leaves as it is; the pages have a list of the versions.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from latex2mathml.converter import convert

from orchestrator.results.page import write_page
from orchestrator.results.standings import read_standings

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
RECORD = "record.html"
"""The page of the public record, beside the page about it."""
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "benchmarks/*.md", "examples/README.md")
REFERENCE = {
    "python": ("The Python interface", "orchestrator.api"),
    "method": ("What a method is", "orchestrator.method"),
    "objectives": ("Loss functions", "methods.objectives"),
    "proxies": ("Proxies", "methods.proxies"),
    "check": ("Conformance checks", "orchestrator.check"),
}
"""Page -> its title, and the module whose docstrings it shows."""
NEWEST = """\
<!doctype html>
<title>dml-orchestrator</title>
<meta http-equiv="refresh" content="0; url={version}/">
<a href="{version}/">The documentation of {version}</a>
"""
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
"""The file of a link."""
MATH = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LETTERS = re.compile(r"(?:<mi mathvariant=\"normal\">[^<]*</mi>){2,}")
"""A name of several letters, each on its own."""


def mathml(latex: str) -> str:
    """A formula in LaTeX as HTML: a block that scrolls where the page is narrower."""
    math = convert(" ".join(latex.split()), display="block")
    math = LETTERS.sub(lambda found: f"<mi>{re.sub('<[^>]*>', '', found[0])}</mi>", math)
    return f'<div class="formula">{math}</div>'


def staged(folder: Path) -> None:
    """Copy the pages, and what they link to, into a folder, each to its own place."""
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    files = {*pages, ROOT / "docs" / "formulas.css"}
    for page in pages:
        targets = (page.parent / name for name in LINK.findall(page.read_text("utf-8")) if "://" not in name)
        files |= {target.resolve() for target in targets if target.is_file()}
    for path in sorted(files):
        place = folder / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path in pages:
            text = MATH.sub(lambda found: mathml(found[1]), path.read_text("utf-8"))
            place.write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(path, place)
    write_record(folder / "docs")
    (folder / "reference").mkdir()
    for name, (title, module) in REFERENCE.items():
        (folder / "reference" / f"{name}.md").write_text(f"# {title}\n\n::: {module}\n", encoding="utf-8")


def write_record(docs: Path) -> None:
    """The public record as it is now, as a page of its own beside the page about it, which gets a link to it."""
    write_page(read_standings(RESULTS), docs / RECORD)
    about = docs / "results_record.md"
    title, _, rest = about.read_text("utf-8").partition("\n")
    about.write_text(f"{title}\n\n**[Open the record]({RECORD})**\n{rest}", encoding="utf-8")


def build(target: Path) -> None:
    """Build the site into a folder, which is replaced. Exits with Zensical's words if a link leads nowhere."""
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        staged(work / "pages")
        shutil.copyfile(ROOT / "docs" / "zensical.toml", work / "zensical.toml")
        program = Path(sys.executable).parent / "zensical"
        done = subprocess.run([program, "build", "--strict"], cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            words = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
            raise SystemExit(words.partition("Traceback")[0])
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / "site", target)


def release(site: Path) -> str:
    """Build this version into its folder of the site, list the versions there, the newest first; returns its name."""
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])
    build(site / version)
    found = [path.parent.name for path in site.glob("*/index.html") if re.fullmatch(r"\d+(\.\d+)+", path.parent.name)]
    found.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    listed = [{"version": name, "title": name, "aliases": ["latest"] if name == found[0] else []} for name in found]
    (site / "versions.json").write_text(json.dumps(listed) + "\n", encoding="utf-8")
    (site / "index.html").write_text(NEWEST.format(version=found[0]), encoding="utf-8")
    return version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "site", help="the folder of the site")
    target = parser.parse_args().to
    release(target)
    print(f"open it with: python -m http.server --bind 127.0.0.1 --directory {target}")


if __name__ == "__main__":
    main()
