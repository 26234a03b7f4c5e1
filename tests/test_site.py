"""The documentation as a site: it builds without a dead link, and asks for nothing outside."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from docs import build_site  # noqa: E402


def test_it_builds_and_needs_no_network(tmp_path: Path) -> None:
    build_site.build(tmp_path / "site")
    pages = {
        path.relative_to(tmp_path / "site").as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")
    }
    assert {"index.html", "docs/searching.html", "docs/methods.html", "benchmarks/startup.html"} <= pages.keys()
    for name, html in pages.items():
        fetched = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?([^\" >]+)|<link[^>]* href=\"?([^\" >]+)", html)
        assert not [place for place in fetched if "//" in "".join(place)], name
    for page, (_, module) in build_site.REFERENCE.items():
        assert f'id="{module}"' in pages[f"reference/{page}.html"]
    assert 'id="orchestrator.api.search"' in pages["reference/python.html"]
    (searched,) = tmp_path.rglob("search.js*")
    assert "coding rate" in searched.read_text("utf-8")


def test_versions_stand_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(target: Path) -> None:
        target.mkdir(exist_ok=True)
        (target / "index.html").touch()

    for name in ("0.9.0", "0.10.0", "notes"):
        built(tmp_path / name)
    monkeypatch.setattr(build_site, "build", built)
    version = build_site.release(tmp_path)
    listed = json.loads((tmp_path / "versions.json").read_text("utf-8"))
    assert [one["version"] for one in listed] == ["0.10.0", "0.9.0", version]
    assert [one["aliases"] for one in listed] == [["latest"], [], []]
    assert "url=0.10.0/" in (tmp_path / "index.html").read_text("utf-8")


def test_every_page_is_in_its_menu() -> None:
    named = set(re.findall(r'"([\w/]+\.md)"', (ROOT / "docs" / "zensical.toml").read_text("utf-8")))
    found = {path.relative_to(ROOT).as_posix() for pattern in build_site.PAGES for path in ROOT.glob(pattern)}
    assert named == found | {f"reference/{name}.md" for name in build_site.REFERENCE}


def test_a_dead_link_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks", "examples"):
        place = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", "*.json", "gpu")
        shutil.copytree(place, tmp_path / name, ignore=ignored) if place.is_dir() else shutil.copy(place, tmp_path)
    page = tmp_path / "docs" / "searching.md"
    page.write_text(page.read_text("utf-8") + "\n[nowhere](nowhere.md)\n", encoding="utf-8")
    monkeypatch.setattr(build_site, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"page does not exist\s+.* docs/searching\.md:\d+"):
        build_site.build(tmp_path / "site")
    assert not (tmp_path / "site").exists()
