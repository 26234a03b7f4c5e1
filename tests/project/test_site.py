"""The documentation as a site: it builds without a dead link, and asks for nothing outside."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
sys.path.insert(0, str(ROOT))
from docs import build_site  # noqa: E402


@pytest.mark.slow
def test_it_builds_and_needs_no_network(tmp_path: Path) -> None:
    build_site.build(tmp_path / "site")
    pages = {
        path.relative_to(tmp_path / "site").as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")
    }
    assert 'href="record.html"' in pages["docs/results_record.html"]
    for task in {row.name.split(".")[0] for row in (ROOT / "results" / "rows").iterdir()}:
        assert f"{task}: the settings found for" in pages["docs/record.html"]
    assert {"index.html", "docs/searching.html", "docs/methods.html", "benchmarks/startup.html"} <= pages.keys()
    for name, html in pages.items():
        fetched = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?([^\" >]+)|<link[^>]* href=\"?([^\" >]+)", html)
        assert not [place for place in fetched if "//" in "".join(place)], name
    for page, (_, module) in build_site.REFERENCE.items():
        assert f'id="{module}"' in pages[f"reference/{page}.html"]
    assert 'id="orchestrator.api.search"' in pages["reference/python.html"]
    told = (ROOT / "docs" / "methods.md").read_text("utf-8").count("```math\n")
    assert pages["docs/methods.html"].count('<div class="formula"><math') == told > 90
    assert not [name for name, html in pages.items() if "language-math" in html]
    assert (tmp_path / "site" / "docs" / "formulas.css").is_file()
    (searched,) = tmp_path.rglob("search.js*")
    assert "coding rate" in searched.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [1400, 1000, 390])
def test_formulas_are_set_and_scroll_where_the_page_is_narrow(width: int, tmp_path: Path) -> None:
    text = build_site.MATH.sub(
        lambda found: build_site.mathml(found[1]), (ROOT / "docs" / "methods.md").read_text("utf-8")
    )
    formulas = re.findall(r'<div class="formula">.*</div>', text)
    style = (ROOT / "docs" / "formulas.css").read_text("utf-8")
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page(
            viewport={"width": width, "height": 900}
        )
        page.set_content(f"<!doctype html><style>{style}</style>{''.join(formulas)}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.evaluate(
            "[...document.querySelectorAll('.formula')].map(f => [f.clientHeight, f.scrollHeight - f.clientHeight])"
        )
    assert len(sizes) == len(formulas) > 90
    assert all(height > 20 and hidden == 0 for height, hidden in sizes), sizes


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


@pytest.mark.slow
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
