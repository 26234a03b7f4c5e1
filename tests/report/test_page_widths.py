"""Pages on a telephone and on paper, in a real browser: nothing is cut, and nothing stands there without use."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.browsers import browser, opened, until  # noqa: F401
from support.made_benchmarks import side_by_side
from support.made_pages import made, spread
from support.pictures import picture

from orchestrator.data.card import DataCard
from orchestrator.data.prepare import prepare
from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.report.html.comparison_page import comparison_page
from orchestrator.report.html.data_page import write_data_page
from orchestrator.report.html.search_page import page
from orchestrator.results.page import results_page
from orchestrator.results.standings import read_standings

RECORD = Path(__file__).parents[2] / "results"
DRAWN = "[...document.querySelectorAll('.plot[data-drawn]')].filter((node) => node.checkVisibility())"
NAMES = ".xtitle, .axis-title, #parallel .tick text"
CUT = f"""() => {DRAWN}.flatMap((node) => {{
  const box = node.getBoundingClientRect();
  const outside = ({{ left, right }}) => left < box.left - 1 || right > box.right + 1;
  return [...node.querySelectorAll('{NAMES}')].filter((title) => outside(title.getBoundingClientRect()))
    .map((title) => `${{node.id}}: ${{title.textContent}}`); }})"""
HIDDEN = f"""() => {DRAWN}.flatMap((node) => {{
  const one = node.querySelector('.xtitle')?.getBoundingClientRect();
  const other = node.querySelector('.legend')?.getBoundingClientRect();
  return one && other && one.top < other.bottom - 2 && other.top < one.bottom - 2 ? [node.id] : []; }})"""
WIDE = """() => [...document.querySelectorAll('table.sortable')].filter((table) => table.checkVisibility()
  && table.scrollWidth > table.parentElement.clientWidth + 1).map((table) => table.id)"""
NARROW = f"() => {DRAWN}.filter((node) => node.querySelector('.main-svg').clientWidth < 600).map((node) => node.id)"
SEEN = "(what) => [...document.querySelectorAll(what)].filter((node) => node.checkVisibility()).length"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    ledgers = side_by_side(folder, {"a": [0.51, 0.53, 0.54], "a_method_with_a_long_name": [0.4, 0.45, 0.41]})
    path = folder / "comparison.html"
    html = comparison_page(Comparison.of("compared", ledgers), dict.fromkeys(ledgers, "search.html"))
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    path = folder / "search.html"
    path.write_text(page(Findings.of(made(folder, spread(20), finals={"0005": [0.5, 0.51]}))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def over_methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search whose first setting has long names."""
    names, folder = ["mean_field_multi_similarity", "pfml"], tmp_path_factory.mktemp("methods")
    space = {"method": names, "lr": {"low": 1e-5, "high": 1e-2, "log": True}}
    points = [{"method": names[number % 2], "lr": 10 ** (-2 - number / 8)} for number in range(20)]
    path = folder / "search.html"
    ledger = made(folder, points, lambda point: 0.4 - point["lr"], raw={"dataset": "cub200", "space": space})
    path.write_text(page(Findings.of(ledger)), encoding="utf-8")
    return path


def test_a_column_of_links_is_marked(compared: Path) -> None:
    html = compared.read_text("utf-8")
    assert html.count('class="leads"') == 3 and html.count('<a href="search.html">open</a>') == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compared", "searched", "over_methods"])
def test_titles_fit_a_telephone(browser: Any, request: pytest.FixtureRequest, name: str) -> None:  # noqa: F811
    said = list[str]()
    tab = opened(browser, request.getfixturevalue(name).as_uri(), said, viewport={"width": 390, "height": 800})
    assert tab.evaluate(SEEN, ".plot[data-drawn] .xtitle") > 2
    assert (tab.evaluate(CUT), tab.evaluate(HIDDEN), tab.evaluate(WIDE), said) == ([], [], [], [])


@pytest.mark.slow
def test_titles_fit_a_window_that_became_narrow(browser: Any, searched: Path) -> None:  # noqa: F811
    tab = opened(browser, searched.as_uri(), [], viewport={"width": 1200, "height": 800})
    tab.set_viewport_size({"width": 390, "height": 800})
    until(tab, [], CUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compared", "searched"])
def test_paper_has_whole_figures_and_no_links(browser: Any, request: pytest.FixtureRequest, name: str) -> None:  # noqa: F811
    said = list[str]()
    tab = opened(browser, request.getfixturevalue(name).as_uri(), said, viewport={"width": 1000, "height": 800})
    before = tab.evaluate(SEEN, ".leads")
    assert before == (3 if name == "compared" else 0)
    tab.emulate_media(media="print")
    tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert (tab.evaluate(CUT), tab.evaluate(WIDE), tab.evaluate(NARROW)) == ([], [], [])
    assert tab.evaluate(SEEN, ".leads") == 0
    assert tab.evaluate(SEEN, "table.stacked") == 0
    tab.emulate_media(media="screen")
    tab.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate(SEEN, ".leads") == before and said == []


@pytest.mark.slow
def test_the_card_of_a_data_set_fits_every_window(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    """With a remark that is long, and a class whose name has no place to break."""
    for label, name in enumerate(["a" * 90, "b", "c", "d"]):
        for number in range(3):
            picture(tmp_path / "source" / name / f"{number}.png", 3 * label + number)
    shutil.copy(tmp_path / "source" / "b" / "0.png", tmp_path / "source" / "d" / "9.png")
    store = prepare("folder", tmp_path / "source", tmp_path / "data", name="own", allow_duplicates=True)
    path = tmp_path / "card.html"
    write_data_page(DataCard.of(store), store, path, confused=True)
    for width in (1400, 1000, 390):
        said = list[str]()
        tab = opened(browser, path.as_uri(), said, viewport={"width": width, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") == width and said == []
        assert tab.evaluate(SEEN, "img") == len(store) + 2 * tab.evaluate(SEEN, "h2 ~ ol:has(span)")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "record.html"
    path.write_text(results_page(read_standings(RECORD)), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 1000, 390])
def test_the_record_is_a_table_where_one_has_room(browser: Any, recorded: Path, width: int) -> None:  # noqa: F811
    """Rows under each other, and a picture without the bars of its groups, on a telephone alone; the line of the
    pre-trained network everywhere."""
    said = list[str]()
    tab = opened(browser, recorded.as_uri(), said, viewport={"width": width, "height": 800})
    table, picture_of = "#rows-glyphs-small-table", "#differences-glyphs-small"
    assert (tab.evaluate(SEEN, f"{table}.stacked") == 1) is (width == 390)
    assert (tab.evaluate(SEEN, f"{table}.tight") == 1) is (width == 1000)
    assert (tab.evaluate(SEEN, f"{picture_of} .annotation") > 0) is (width != 390)
    tab.eval_on_selector("#differences-emoji-frozen", "element => element.scrollIntoView()")
    tab.wait_for_selector("#differences-emoji-frozen .shapelayer path", state="attached")
    lines = tab.eval_on_selector_all("#differences-emoji-frozen .shapelayer path", "paths => paths.length")
    assert (lines == 1) if width == 390 else (lines > 2)
    assert (tab.evaluate(CUT), tab.evaluate(HIDDEN), tab.evaluate(WIDE), said) == ([], [], [], [])


@pytest.mark.slow
def test_a_filter_takes_a_value_with_blanks(browser: Any, recorded: Path) -> None:  # noqa: F811
    rows = read_standings(RECORD).outputs
    count = sum(row.against_reference is not None and row.against_reference.verdict == "not told apart" for row in rows)
    said = "() => document.getElementById('selection-said').textContent"
    tab = opened(browser, recorded.as_uri(), [])
    tab.fill("#filter", 'against_proxy_anchor = "not told apart"')
    until(tab, f"{count} of {len(rows)} rows match", said)
    tab.fill("#filter", 'against_best="the best" task=emoji-frozen')
    until(tab, f"1 of {len(rows)} rows match", said)
    tab.fill("#filter", "against_proxy_anchor=not told apart")
    until(tab, 'against_proxy_anchor=not: write against_proxy_anchor="not told apart"', said)
