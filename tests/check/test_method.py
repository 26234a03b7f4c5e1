"""The Method contract: what is refused when a class is defined, and how methods are found."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, Field

import orchestrator.contract
from orchestrator import method as contract
from orchestrator.check import Subject
from orchestrator.check.processes import train_on_two
from orchestrator.cli.main import main
from orchestrator.errors import InputError
from orchestrator.method import Method, MethodConfig, find_method, registry


def define(**attributes: Any) -> type[Method]:
    return type("Mine", (Method,), {"name": "mine", "paper": "none", "__module__": "somewhere"} | attributes)


def test_the_built_in_methods_are_registered() -> None:
    assert {"pfml", "proxy_anchor", "multi_similarity"} <= set(registry())
    for name, method in registry().items():
        assert method.name == name
        assert method.__doc__


def test_a_misspelt_method_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'proxy_anchor'"):
        find_method("proxy_ancor")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": None}, "needs a class attribute `name`"),
        ({"losss": lambda self: None}, "'losss' is not a hook (did you mean 'loss'?)"),
        ({"after_validate": lambda self: None}, "did you mean 'after_validation'"),
        ({"Config": type("Config", (BaseModel,), {})}, "must derive from orchestrator.method.MethodConfig"),
        ({"sampler": "balanced"}, "sampler 'balanced'"),
    ],
)
def test_a_bad_class_is_refused_when_it_is_defined(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        define(**attributes)
    assert message in str(caught.value)


def test_a_config_that_is_not_frozen_is_refused() -> None:
    class Loose(MethodConfig, frozen=False):
        margin: float = 0.1

    with pytest.raises(TypeError, match="frozen"):
        define(Config=Loose)


def test_own_helpers_may_start_with_an_underscore() -> None:
    assert define(_losss=lambda self: None).name == "mine"


def test_a_config_refuses_unknown_keys_and_wrong_types() -> None:
    class Config(MethodConfig):
        margin: float = Field(0.1, ge=0)

    for bad in ({"margn": 0.1}, {"margin": "0.1"}, {"margin": float("nan")}):
        with pytest.raises(ValueError):
            Config(**bad)
    with pytest.raises(ValueError, match="frozen"):
        Config().margin = 0.2  # type: ignore[misc]


class FakeEntry:
    """An entry point as importlib.metadata gives it."""

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value, self.dist = name, value, SimpleNamespace(name="its-distribution")


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes plugin packages and clears the registry's memory."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(**sources: str) -> None:
        entries = [FakeEntry("builtin", "methods")]
        for name, source in sources.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(source)
            entries.append(FakeEntry(name, name))
        monkeypatch.setattr(orchestrator.contract, "entries", lambda group: entries)
        for cached in (contract.registry, contract._discover):
            cached.cache_clear()

    yield install
    for cached in (contract.registry, contract._discover):
        cached.cache_clear()
    for name in [name for name in sys.modules if name.startswith("plugin_")]:
        del sys.modules[name]


PLUGIN = '''
from orchestrator.method import Method

class Mine(Method):
    """Nothing."""
    name = "{name}"
    paper = "none"
    def loss(self, outputs, labels):
        return {{"loss": outputs["embedding"].sum() * 0}}
'''


def test_a_plugin_is_found_and_a_broken_one_named(plugins: Any) -> None:
    plugins(
        plugin_good=PLUGIN.format(name="mine"),
        plugin_broken="import no_such_package",
        plugin_taken=PLUGIN.format(name="pfml"),
        plugin_misspelt=PLUGIN.format(name="x").replace("def loss", "def losss"),
    )
    assert registry()["mine"].__module__ == "plugin_good"
    assert registry()["pfml"].__module__ == "methods.pfml"
    problems = "\n".join(contract.plugin_problems())
    assert "plugin_broken" in problems
    assert "no_such_package" in problems
    assert "method 'pfml'" in problems
    assert "did you mean 'loss'" in problems
    assert len(contract.plugin_problems()) == 3


CONFIGURED = PLUGIN.replace(
    'paper = "none"', 'paper = "none"\n    class Config(MethodConfig):\n        {field}'
).replace("import Method", "import Method, MethodConfig\nfrom pydantic import Field")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "import sys; sys.exit('licence?')",
            "plugin 'plugin_bad' of its-distribution was left out: SystemExit: licence?",
        ),
        ("raise KeyboardInterrupt", "plugin 'plugin_bad' of its-distribution was left out: KeyboardInterrupt"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("from orchestrator.errors import InputError\nraise InputError('mine')", "InputError: mine"),
        ("def f(:", "SyntaxError"),
        (
            PLUGIN.format(name="x").replace("class Mine(Method):", "class Mine(Method):\n    Config = dict"),
            "Config must derive",
        ),
        (
            CONFIGURED.format(name="x", field="margin: float = Field(-1.0, ge=0)"),
            "method 'x' of its-distribution was left out: its Config refuses its own defaults: margin: Input should be",
        ),
        (CONFIGURED.format(name="x", field="margin: float"), "refuses its own defaults: margin: Field required"),
        (PLUGIN.format(name="pfml"), "method 'pfml' of its-distribution (plugin_bad) was left out: methods.pfml has"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_one_line_and_the_others_work(plugins: Any, source: str, says: str) -> None:
    plugins(plugin_bad=source, plugin_good=PLUGIN.format(name="mine"))
    (problem,) = contract.plugin_problems()
    assert says in problem
    assert "\n" not in problem
    assert {"mine", "pfml"} <= set(registry())
    assert registry()["pfml"].__module__ == "methods.pfml"
    with pytest.raises(InputError, match="was left out"):
        find_method("y")


def test_commands_say_which_plugins_were_left_out(
    plugins: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plugins(plugin_bad="import no_such_package")
    line = "warning: plugin 'plugin_bad' of its-distribution was left out: ModuleNotFoundError"
    for command in ("methods", "methods --json", f"search demo --dry-run --storage {tmp_path}"):
        with pytest.raises(SystemExit) as leaving:
            main(command.split())
        assert not leaving.value.code
        printed = capsys.readouterr()
        assert [text for text in printed.err.splitlines() if text.startswith(line)], command
        assert "pfml" in printed.out


def test_a_folder_called_methods_does_not_shadow_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="shadows"):
        contract._refuse_shadow(str(tmp_path / "methods" / "__init__.py"))
    with pytest.raises(InputError, match="without __init__"):
        contract._refuse_shadow(None)


@pytest.mark.parametrize(
    ("name", "settings", "idle"),
    [
        ("contrastive", {}, {"proxies_per_class": 3, "proxy_lr_multiplier": 7.0, "memory_size": 9, "memory_start": 0}),
        ("contrastive", {"references": "proxies"}, {"memory_size": 9, "memory_start": 0}),
        ("contrastive", {"references": "memory"}, {"proxies_per_class": 3, "proxy_lr_multiplier": 7.0}),
        ("margin", {"learn_beta": "no"}, {"proxies_per_class": 3, "proxy_lr_multiplier": 7.0}),
        ("margin", {}, {"proxies_per_class": 3}),
        ("pfml", {"proxies_per_class": 0}, {"proxy_lr_multiplier": 7.0}),
        ("pfml", {"alpha": 0.0}, {"delta": 0.3, "delta_rep": 0.5}),
        ("anti_collapse", {}, {"guidance_temperature": 3.0, "text_embeddings": "no.csv"}),
        ("anti_collapse", {"form": "pair", "proxy_loss": False}, {"nu": 0.1, "objective": "proxy_nca", "scale": 3.0}),
        ("idml", {"mixup": False}, {"mixup_loss": "released", "mixup_alpha": 3.0, "mixup_blocks": 1}),
        ("idml", {"objective": "triplet"}, {"proxies_per_class": 3, "proxy_lr_multiplier": 7.0}),
        ("ccp", {"problems": 1}, {"pool_size": 3, "proximal_weight": 1.0}),
        ("roadmap", {"calibration_weight": 0.0}, {"alpha": 0.5, "beta": 0.2}),
        ("roadmap", {"calibration_weight": 1.0}, {"tau": 0.5, "rho": 3.0, "delta": 0.5}),
        ("recall_at_k_surrogate", {"references": "proxies"}, {"simix": True}),
    ],
)
def test_settings_said_to_be_idle_change_nothing(name: str, settings: dict[str, Any], idle: dict[str, Any]) -> None:
    method = registry()[name]
    assert idle.keys() <= method.Config(**settings | idle).idle().keys()
    plain, others = (train_on_two(Subject(method, given)) for given in (settings, settings | idle))
    assert plain.keys() == others.keys()
    for key, value in plain.items():
        np.testing.assert_array_equal(value, others[key], err_msg=key)


@pytest.mark.parametrize(("start", "unused"), [(3, True), (1, False)])
def test_a_memory_that_begins_after_the_training_changes_nothing(start: int, unused: bool) -> None:
    """`train` has three steps."""
    method = registry()["contrastive"]
    settings = [{"references": "memory", "memory_start": start, "memory_size": size} for size in (4, 64)]
    assert ("memory_size" in method.Config(**settings[0]).idle_within(3)) == unused
    small, large = ({k: v for k, v in train_on_two(Subject(method, s)).items() if "memory" not in k} for s in settings)
    assert all(np.array_equal(value, large[key]) for key, value in small.items()) == unused


@pytest.mark.parametrize(
    ("name", "settings", "key"),
    [
        ("contrastive", {"references": "proxies"}, "proxies_per_class"),
        ("contrastive", {"references": "batch+memory"}, "memory_start"),
        ("margin", {"learn_beta": "one"}, "proxy_lr_multiplier"),
        ("pfml", {}, "delta"),
        ("anti_collapse", {}, "nu"),
        ("idml", {}, "mixup_alpha"),
        ("ccp", {}, "pool_size"),
    ],
)
def test_settings_with_an_effect_are_not_said_to_be_idle(name: str, settings: dict[str, Any], key: str) -> None:
    assert key not in registry()[name].Config(**settings).idle()
