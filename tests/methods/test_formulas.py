"""The methods' formulas in LaTeX: each method has one, it says what the plain one says, and the site can set it."""

import re
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from orchestrator.cli.describe import describe_method
from orchestrator.method import Method, registry
from orchestrator.plugins import Installed, installed_methods

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from docs import build_site  # noqa: E402

SHIPPED = [name for name, method in registry().items() if method.__module__.startswith("methods.")]
ELEMENTS = {
    *("math", "mrow", "mi", "mo", "mn", "mtext", "mspace", "msub", "msup", "msubsup", "munder"),
    *("mfrac", "msqrt", "mtable", "mtr", "mtd"),
}
"""What every browser sets."""
SHAPES = {
    *("left", "right", "lVert", "quad", "ldots", "frac", "sqrt", "underset", "mathrm", "text", "begin"),
    *("end", "sum", "cdot", "sim", "top", "ge", "le", "ne", "leftarrow", "rVert", "min", "max", "log", "exp", "cos"),
    *("tan", "det", "partial"),
}
"""Commands of LaTeX that are no symbols of a formula."""
GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "theta", "kappa", "mu", "nu", "psi", "rho", "sigma", "tau"}


def described(name: str) -> Installed:
    return installed_methods()[name]


def formulas(name: str) -> list[str]:
    return described(name).latex.split("\n\n")


def words(text: str) -> set[str]:
    """The words of a plain text, and the parts of those with an underscore."""
    found = set(re.findall(r"[a-z]\w*|[A-Z]\w*", text))
    return found | {part for word in found for part in word.split("_")}


def names(latex: str) -> set[str]:
    """Greek letters, and what is in upright letters: hyperparameters, functions and losses."""
    commands = set(re.findall(r"\\([A-Za-z]+)", latex)) - SHAPES
    upright = re.findall(r"\\mathrm\{([^}]*)\}", latex)
    indexed = re.findall(r"\\([a-z]+)_\{\\mathrm\{(\w+)\}\}", latex)
    found = commands | {name.replace(r"\_", "_") for name in upright} | {"_".join(parts) for parts in indexed}
    return found - {"nabla"} | ({"grad"} if "nabla" in commands else set())


@pytest.mark.parametrize("name", SHIPPED)
def test_each_method_has_one_that_can_be_set(name: str) -> None:
    assert described(name).latex and "\\operatorname" not in described(name).latex, "GitHub refuses it: \\mathrm"
    for formula in formulas(name):
        html = build_site.mathml(formula)
        assert "\\" not in html and "&amp;" not in html and "<mi>&</mi>" not in html
        inside = ElementTree.fromstring(html)
        found = {str(element.tag).rpartition("}")[2] for element in inside.iter()} - {"div"}
        assert "math" in found and found <= ELEMENTS, found - ELEMENTS


@pytest.mark.parametrize("name", SHIPPED)
def test_it_names_what_the_plain_formula_names(name: str) -> None:
    method = described(name)
    told = method.documentation
    assert names(method.latex) <= words(told), names(method.latex) - words(told)
    plain = [part for part in told.split("\n\n") if " = " in part.splitlines()[0]]
    hyperparameters = {field for field in method.fields.model_fields if "_" in field or field in GREEK}
    asked = words(re.sub("`[^`]*`", "", " ".join(plain))) & hyperparameters
    assert asked <= names(method.latex), asked - names(method.latex)


def test_a_method_without_one_has_its_plain_formula_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(registry()["contrastive"]):  # type: ignore[misc]
        """A loss of its own.

        L = d
        """

        name = "plain"
        paper = "unpublished"

    monkeypatch.setitem(registry(), "plain", Plain)
    monkeypatch.setattr("orchestrator.plugins._read_record", lambda: None)
    plain = describe_method(described("plain"))
    assert plain.latex == "" and plain.documentation.endswith("L = d")
    paragraphs = runpy.run_path(str(ROOT / "docs" / "write_methods_page.py"))["_paragraphs"]
    assert paragraphs(plain.documentation, "") == ["A loss of its own.", "", "```text", "L = d", "```", ""]
    with_latex = paragraphs(plain.documentation, "L = d\n\nd = 1")
    assert with_latex[2:8] == ["```math", "L = d", "```", "", "```math", "d = 1"]


def test_one_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="class attribute `latex`, a string"):

        class Wrong(Method):
            """L = d"""

            name = "wrong"
            paper = "unpublished"
            latex = ("L = d",)  # type: ignore[assignment]
