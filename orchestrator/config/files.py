"""Files and `--set` values as YAML 1.2, read with bounds, and with the line of every key.

Mistakes and malicious input are reported in one line: files that are too large, nested too deeply, that
grow by references (`*name`), integers of hundreds of digits, tags of other languages.
"""

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.docinfo import DocInfo, version
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from orchestrator.errors import InputError, Problems, shown, suggestion

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

    def line(self, words: str) -> int | None:
        """The line of the innermost key that a message begins with: `space.delta: low: ...`; None if it names none."""
        deepest: Keys = ()
        if ("settings",) not in self.lines:  # method and dataset have no other place
            words = words.removeprefix("settings: ")
        while True:
            inner = [keys[-1] for keys in self.lines if keys[:-1] == deepest and _begins(words, keys[-1])]
            if inner:
                key = max(inner, key=len)
                deepest, words = (*deepest, key), words[len(key) :].lstrip(":. ")
            elif (*deepest, "choices") in self.lines:  # of a branch, which messages name by its choice alone
                deepest = (*deepest, "choices")
            elif deepest == ("settings",) and any(_begins(words, keys[0]) for keys in self.lines):
                deepest = ()  # method and dataset may stand beside the settings
            else:
                break
        while deepest and deepest not in self.lines:
            deepest = deepest[:-1]
        return self.lines.get(deepest)


def _begins(words: str, key: str) -> bool:
    return words.startswith(key) and words[len(key) : len(key) + 1] in ("", ":", ".", " ", "[")


def read_yaml(path: Path) -> Document:
    """A YAML 1.2 mapping; duplicate keys are refused. InputError names the file, and its line where there is one."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: has more than {MAX_BYTES:,} bytes, too many for a search file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not YAML (not UTF-8 text)") from None
    try:
        content, lines = _read(text, lambda node: f"{path}, line {node.start_mark.line + 1}")
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = (error.problem or error.context or "cannot be parsed").split("\n")[0]
        problem = problem.partition(" with value ")[0]  # of a duplicate key: its value is not as it was written
        if "expected a single document" in str(error.context):
            problem = "several documents (---); a file holds one"
        raise InputError(f"{path}{line}: not YAML: {problem}") from None
    except YAMLError as error:
        raise InputError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise InputError(f"{path}: {TOO_DEEP}") from None
    if content is None:
        raise InputError(f"{path}: is empty; it should be a mapping with method, space, ...")
    if not isinstance(content, dict):
        raise InputError(f"{path}: should be a mapping of keys to values, not {type(content).__name__}")
    return Document(content, lines)


TOO_DEEP = f"nested more than {MAX_DEPTH} deep"


def read_scalar(text: str, where: str = "value") -> Any:
    """A `--set` value by YAML 1.2's rules: `1e-4` is a number, `no` is a string. InputError for what `read_yaml` also
    refuses; what is not YAML is text."""
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{where}: {shown(text)}: at most {MAX_CHARACTERS:,} characters are allowed")
    try:
        return _read(text, lambda node: where)[0]
    except RecursionError:
        raise InputError(f"{where}: {TOO_DEEP}") from None
    except YAMLError:
        return text


def quoted(text: str) -> str:
    """A text as a value in a search file, before a comment: in quotation marks where it would else be read as something
    else."""
    try:
        plain = _read(f"key: {text}  # comment", lambda node: "value")[0] == {"key": text}
    except (YAMLError, RecursionError, InputError):
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())


def parse_assignments(
    assignments: list[str], option: str = "--set", example: str = "lr=1e-4", problems: Problems | None = None
) -> dict[str, Any]:
    """Parse `KEY=VALUE` words, of `--set` and the like. What is wrong goes into `problems`, and the sound words'
    values are returned (the first for a key that is set twice); without `problems`, InputError lists it."""
    values: dict[str, Any] = {}
    collected = Problems() if problems is None else problems
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        with collected.noted():
            if not equals or not key:
                raise InputError(f"{option} {assignment}: should read KEY=VALUE, for example {option} {example}")
            if not text.strip():
                raise InputError(f"{option} {assignment}: no value after '='; for none write {key}=none")
            if key in values:
                raise InputError(f"{option} {assignment}: {key} is set twice")
            values[key] = read_scalar(text, f"{option} {key}")
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


def _read(text: str, where: Any) -> tuple[Any, dict[Keys, int]]:
    """The content and the lines; `where(node)` names a node's place."""
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
            raise InputError(f"{where(node)}: more than {MAX_VALUES:,} values once its references (*) are expanded")
        try:
            return constructor.construct_document(node), dict(_lines(node, ()))
        except PARSER_ERRORS as error:
            raise InputError(f"{where(node)}: not YAML: {shown(str(error))}") from None
    finally:
        parser.dispose()


def _size(node: Node, where: Any, sizes: dict[int, tuple[int, int]], above: set[int]) -> tuple[int, int]:
    """How many values a node stands for, and how deeply they are nested; InputError for one that is not allowed."""
    if id(node) in above:
        raise InputError(f"{where(node)}: contains itself through a reference (*)")
    if id(node) in sizes:
        return sizes[id(node)]
    if node.tag in TEXT:
        node.tag = f"{CORE}str"
    if node.tag not in TAGS:
        raise InputError(f"{where(node)}: {shown(str(node.tag).replace(CORE, '!!'))}: not a supported type of value")
    if node.tag == f"{CORE}int" and len(node.value) > MAX_DIGITS:
        raise InputError(f"{where(node)}: {shown(node.value)}: a number of more than {MAX_DIGITS} digits")
    children: list[Node] = []
    if isinstance(node, SequenceNode):
        children = node.value
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise InputError(f"{where(key)}: a key should be a word, not a list or a mapping")
            children += [key, value]
    above.add(id(node))
    sizes_of_children = [_size(child, where, sizes, above) for child in children]
    above.discard(id(node))
    size, depth = (
        1 + sum(size for size, _ in sizes_of_children),
        1 + max((depth for _, depth in sizes_of_children), default=0),
    )
    if depth > MAX_DEPTH:
        raise InputError(f"{where(node)}: {TOO_DEEP}")
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
        if path.is_dir():
            raise InputError(f"{name}: is a folder, not a search file (a shipped one has a name alone, such as demo)")
        if not path.is_file():
            raise InputError(f"{name}: no such search file (a shipped one has a name alone, such as demo)")
        return path.resolve()
    shipped = shipped_searches()
    if name not in shipped:
        if os.path.isdir(path):  # noqa: PTH112 (False for a name that no file can have)
            raise InputError(f"{name}: is a folder, not a search file; name the file in it")
        if os.path.isfile(path):  # noqa: PTH113
            raise InputError(f"{name}: a search file is named so that it ends in .yaml")
        near = [file.name for file in Path().glob("*.y*ml")]
        if namesakes := [file for file in near if Path(file).stem == Path(name).stem]:
            raise InputError(f"unknown search '{name}' (did you mean '{namesakes[0]}'?)")
        see = "orchestrator methods: most have a search of their name, and there are demo and method_comparison"
        raise InputError(f"unknown search '{name}'{suggestion(name, shipped, see)}")
    return shipped[name]
