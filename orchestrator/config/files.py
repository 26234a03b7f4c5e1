"""Files and `--set` values as YAML 1.2, read with bounds, and with the line of every key.

Mistakes and malicious input are reported in one line: files that are too large, nested too deeply, that
grow by references (`*name`), integers of hundreds of digits, tags of other languages.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.docinfo import DocInfo, version
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import StreamEndEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from orchestrator.contract import family_of
from orchestrator.errors import InputError, Problems
from orchestrator.problems import SET, File, KeyPath, Operand, Option, Problem, Step, as_path, format_value, suggestion

MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_VALUES = 100_000
"""With every reference written out."""
MAX_DIGITS = 30
"""The maximum number of digits of a whole number."""
MAX_CHARACTERS = 10_000
"""Of a value on the command line."""

CORE = "tag:yaml.org,2002:"
TAGS = {f"{CORE}{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}
TEXT = {f"{CORE}timestamp", f"{CORE}value"}
"""What is more than text in YAML 1.1 only: a date, and `=`."""

PARSER_ERRORS = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, AssertionError)
"""What the parser raises on garbage beside its own."""

Keys = tuple[str, ...]


class Document(dict[str, Any]):
    """The mapping of a file, and the line (from 1) of every key; an item of a list is called `[0]`."""

    def __init__(self, content: Mapping[str, Any], lines: Mapping[Keys, int]) -> None:
        super().__init__(content)
        self.lines = lines

    def without(self, keys: Iterable[str]) -> "Document":
        """The same file without some of its keys."""
        return Document({key: value for key, value in self.items() if key not in keys}, self.lines)

    def line(self, path: KeyPath) -> int | None:
        """The line of the innermost key of a path that the file has; None if it has none of them."""
        deepest: Keys = ()
        keys = [f"[{step}]" if isinstance(step, int) else str(step) for step in path]
        if ("settings",) not in self.lines and keys[:1] == ["settings"]:  # method and dataset have no other place
            keys = keys[1:]
        for key in keys:
            places = [(*deepest, key), (*deepest, "choices", key)]  # a path names a branch by its choice alone
            if deepest == ("settings",):
                places.append((key,))  # method and dataset may stand beside the settings
            if not (there := [place for place in places if place in self.lines]):
                break
            deepest = there[0]
        return self.lines.get((*deepest, "choices"), self.lines.get(deepest))


def read_yaml(path: Path, keys: str = "method, space") -> Document:
    """A YAML 1.2 mapping, of such keys; duplicate ones are refused. InputError names the file, and its line where there
    is one."""
    where = Problem((File(path),))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(replace(where, rule=f"cannot be read ({error.strerror})")) from None
    if len(data) > MAX_BYTES:
        raise InputError(replace(where, rule=f"has more than {MAX_BYTES:,} bytes, too many for a search file"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(replace(where, rule="not YAML (not UTF-8 text)")) from None
    try:
        content, lines = _read(text, lambda node: replace(where, line=node.start_mark.line + 1))
    except _SeveralDocuments as error:
        raise InputError(
            replace(where, line=error.args[0], rule="not YAML: several documents (---); a file holds one")
        ) from None
    except MarkedYAMLError as error:
        problem = (error.problem or error.context or "cannot be parsed").split("\n")[0]
        if isinstance(error, DuplicateKeyError):  # the key is in its text alone, and a value not as it was written
            problem = problem.partition(" with value ")[0]
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(replace(where, line=line, rule=f"not YAML: {problem}")) from None
    except YAMLError as error:
        raise InputError(replace(where, rule=f"not YAML: {str(error).splitlines()[0]}")) from None
    except RecursionError:
        raise InputError(replace(where, rule=TOO_DEEP)) from None
    if content is None:
        raise InputError(replace(where, rule=f"is empty; it should be a mapping with {keys}, ..."))
    if not isinstance(content, dict):
        rule = f"should be a mapping of keys to values, not {type(content).__name__}"
        raise InputError(replace(where, rule=rule))
    return Document(content, lines)


TOO_DEEP = f"nested more than {MAX_DEPTH} deep"


def read_scalar(text: str, where: Step | KeyPath = "value") -> Any:
    """A `--set` value by YAML 1.2's rules: `1e-4` is a number, `no` is a string. InputError for what `read_yaml` also
    refuses; what is not YAML is text."""
    at = Problem(as_path(where))
    if len(text) > MAX_CHARACTERS:
        raise InputError(replace(at, value=text, rule=f"at most {MAX_CHARACTERS:,} characters are allowed"))
    try:
        return _read(text, lambda node: at)[0]
    except RecursionError:
        raise InputError(replace(at, rule=TOO_DEEP)) from None
    except YAMLError:
        return text


def quote(text: str) -> str:
    """A text as a value in a search file, before a comment: in quotation marks where it would else be read as something
    else."""
    try:
        plain = _read(f"key: {text}  # comment", lambda node: Problem())[0] == {"key": text}
    except (YAMLError, RecursionError, InputError):
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())


def parse_assignments(
    assignments: list[str], option: Option = SET, example: str = "lr=1e-4", problems: Problems | None = None
) -> dict[str, Any]:
    """Parse `KEY=VALUE` words, of `--set` and the like. What is wrong goes into `problems`, and the sound words'
    values are returned (the first for a key that is set twice); without `problems`, InputError lists it."""
    values: dict[str, Any] = {}
    collected = Problems() if problems is None else problems
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key, at = key.strip(), (option, Operand(assignment))
        with collected.collect():
            if not equals or not key:
                rule = ("should read KEY=VALUE, for example ", option, f" {example}")
                raise InputError(Problem(at, rule=rule))
            if not text.strip():
                raise InputError(Problem(at, rule=f"no value after '='; for none write {key}=none"))
            if key in values:
                raise InputError(Problem(at, rule=f"{key} is set twice"))
            values[key] = read_scalar(text, (option, Operand(key)))
    if problems is None:
        collected.tell()
    return values


def yaml_text(content: Mapping[str, Any]) -> str:
    """Plain values as YAML, in their order; `read_yaml` reads the same."""
    writer, text = YAML(typ="safe", pure=True), io.StringIO()
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # its type hints allow None only
    writer.dump(content, text)
    return text.getvalue()


class _SeveralDocuments(YAMLError):
    """Of a text with more than one, the line where the second begins."""


class _Composer(Composer):
    """Ends where a file is nested too deeply: the parser takes seconds for 20,000 brackets, and its recursion ends."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a value and everything in it."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RecursionError
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def get_single_node(self) -> Any:
        """Compose the only document."""
        self.parser.get_event()
        node = None if self.parser.check_event(StreamEndEvent) else self.compose_document()
        if not self.parser.check_event(StreamEndEvent):
            raise _SeveralDocuments(self.parser.get_event().start_mark.line + 1)
        self.parser.get_event()
        return node


Where = Callable[[Node], Problem]


def _read(text: str, where: Where) -> tuple[Any, dict[Keys, int]]:
    """The content and the lines; `where(node)` is a problem at a node's place, without its rule."""
    reader = YAML(typ="safe", pure=True)
    reader.Composer = _Composer
    reader.doc_infos.append(DocInfo(requested_version=version(reader.version)))  # as its load() does
    constructor, parser = reader.get_constructor_parser(text)
    try:
        try:
            node = constructor.composer.get_single_node()
        except PARSER_ERRORS as error:
            raise YAMLError(f"cannot be parsed ({type(error).__name__})") from None
        if node is None:
            return None, {}
        if _size(node, where, {}, set())[0] > MAX_VALUES:
            rule = f"more than {MAX_VALUES:,} values once its references (*) are expanded"
            raise InputError(replace(where(node), rule=rule))
        try:
            return constructor.construct_document(node), dict(_lines(node, ()))
        except PARSER_ERRORS as error:
            raise InputError(replace(where(node), rule=f"not YAML: {format_value(str(error))}")) from None
    finally:
        parser.dispose()


def _size(node: Node, where: Where, sizes: dict[int, tuple[int, int]], above: set[int]) -> tuple[int, int]:
    """How many values a node stands for, and how deeply they are nested; InputError for one that is not allowed."""
    if id(node) in above:
        raise InputError(replace(where(node), rule="contains itself through a reference (*)"))
    if id(node) in sizes:
        return sizes[id(node)]
    if node.tag in TEXT:
        node.tag = f"{CORE}str"
    if node.tag not in TAGS:
        tag = str(node.tag).replace(CORE, "!!")
        raise InputError(replace(where(node), value=tag, rule="not a supported type of value"))
    if node.tag == f"{CORE}int" and len(node.value) > MAX_DIGITS:
        raise InputError(replace(where(node), value=node.value, rule=f"a number of more than {MAX_DIGITS} digits"))
    children: list[Node] = []
    if isinstance(node, SequenceNode):
        children = node.value
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise InputError(replace(where(key), rule="a key should be a word, not a list or a mapping"))
            children += [key, value]
    above.add(id(node))
    sizes_of_children = [_size(child, where, sizes, above) for child in children]
    above.discard(id(node))
    size, depth = (
        1 + sum(size for size, _ in sizes_of_children),
        1 + max((depth for _, depth in sizes_of_children), default=0),
    )
    if depth > MAX_DEPTH:
        raise InputError(replace(where(node), rule=TOO_DEEP))
    sizes[id(node)] = size, depth
    return size, depth


def _lines(node: Node, keys: Keys) -> Iterator[tuple[Keys, int]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            inner = (*keys, str(key.value))
            yield inner, key.start_mark.line + 1
            yield from _lines(value, inner)
    elif isinstance(node, SequenceNode):
        for place, item in enumerate(node.value):
            inner = (*keys, f"[{place}]")
            yield inner, item.start_mark.line + 1
            yield from _lines(item, inner)


SEARCH_SPACES = Path(__file__).resolve().parents[2] / "search_spaces"


def shipped_searches() -> dict[str, Path]:
    """The search files that come with the package, by name."""
    return {path.stem: path for path in sorted(SEARCH_SPACES.glob("*.yaml"))}


def find_search(name: str) -> Path:
    """A search file by path, or a shipped one by name."""
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml") or "/" in name:
        if os.path.isdir(path):  # noqa: PTH112 (False for a name that no file can have)
            raise InputError(f"{name}: is a folder, not a search file (a shipped one has a name alone, such as demo)")
        if not os.path.isfile(path):  # noqa: PTH113
            if family_of(name) is not None:
                raise InputError(f"{name}: is a method, no search file: orchestrator init --method {name} writes one")
            raise InputError(f"{name}: no such search file (a shipped one has a name alone, such as demo)")
        return path.resolve()
    shipped = shipped_searches()
    if name not in shipped:
        if os.path.isdir(path):  # noqa: PTH112
            raise InputError(f"{name}: is a folder, not a search file; name the file in it")
        if os.path.isfile(path):  # noqa: PTH113
            raise InputError(f"{name}: a search file is named so that it ends in .yaml")
        near = [file.name for file in Path().glob("*.y*ml")]
        if namesakes := [file for file in near if Path(file).stem == Path(name).stem]:
            raise InputError(f"unknown search '{name}' (did you mean '{namesakes[0]}'?)")
        see = "orchestrator methods: most have a search of their name, and there are demo and method_comparison"
        raise InputError(Problem(rule=f"unknown search '{name}'", suggestion=suggestion(name, shipped, see)))
    return shipped[name]
