"""The page of a new method: its commands, in its order, on a machine that has nothing of it yet."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.readers import Reader, page_lines, page_steps

from orchestrator.cli.scaffold import new_method

PAGE = "new_method.md"
FILES = {file: text for language, file, text in page_steps(PAGE) if language == "python"}
INSTALL = "uv pip install -e './my_loss[test]'"
INSTEAD = {INSTALL: "uv pip install --quiet --no-deps --no-build-isolation --target plugins ./my_loss"}
"""What is done here in place of the installation: the environment of the tests is left as it is."""
METHOD, NUMBERS = "my_loss/my_loss/__init__.py", "my_loss/tests/test_numbers.py"
PLANTED = {
    "the loss of the page": ("", "", True),
    "its sign reversed": ("hinge = ", "hinge = -", False),
    "positives and negatives exchanged": ("positive, negative = ", "negative, positive = ", False),
}


def run_file(source: str, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def test_its_code_is_for_files_and_its_installation_is_known() -> None:
    assert {line for line in page_lines(PAGE) if not line.startswith(("orchestrator ", "pytest "))} == INSTEAD.keys()
    assert list(FILES) == [METHOD, NUMBERS]


@pytest.mark.parametrize(("old", "new", "holds"), PLANTED.values(), ids=PLANTED)
def test_the_generated_test_holds_for_the_loss_that_is_pasted(
    old: str, new: str, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = new_method("my_loss", tmp_path / "my_loss")
    assert {METHOD, NUMBERS.replace("numbers", "my_loss")} <= {
        path.relative_to(tmp_path).as_posix() for path in project.rglob("*.py")
    }
    run_file(FILES[METHOD].replace(old, new, 1), "my_loss", monkeypatch)
    generated = (project / "tests" / "test_my_loss.py").read_text(encoding="utf-8")
    for source in (generated, FILES[NUMBERS]):
        names = vars(run_file(source, "test_of_it", monkeypatch))
        (test,) = (value for name, value in names.items() if name.startswith("test_") and name != "test_conforms")
        if holds:
            test()
        else:
            with pytest.raises(AssertionError):
                test()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_ends_with_two_methods_compared(tmp_path: Path) -> None:
    plugins = f"{tmp_path / 'my_loss'}:{tmp_path / 'plugins'}"  # as `-e` does
    reader = Reader(tmp_path, {"PYTHONPATH": plugins})
    reader.follow(PAGE, INSTEAD)
    compared = json.loads(reader.run("orchestrator compare mine --json"))
    tests = {member["label"]: member["test"]["seeds"] for member in compared["members"]}
    assert {label: len(seeds) for label, seeds in tests.items()} == {"my_loss": 3, "proxy_anchor": 3}
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "my_loss" in page and "proxy_anchor" in page
