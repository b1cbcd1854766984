"""What `--help` prints: it fits the terminal, and names the command as the user called it.

tyro formats the options of a command. The lines above them are ours: tyro wraps neither usage nor examples.
"""

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Generator, Iterable, Sequence
from types import ModuleType, UnionType
from typing import Annotated, Any, TextIO

from pipelines import exits
from pipelines.called import as_called, called

COLUMNS = 80
"""Most columns of a text; tyro's tables of options take those of the terminal."""
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\[(?:[^\[\]]|\[[^\[\]]*\])*\]|\S)+""")
"""A word of a command, with the blanks in quotes, and in the brackets around what may be left out."""
_COMMENT = re.compile(r" {3,}")
"""What is between an example and what it does."""


def described(doc: str) -> str:
    """Wrap a docstring to the terminal; indented lines are examples, of which a long one goes on after a backslash."""
    columns = _columns()
    doc = as_called(doc)
    return "\n\n".join(
        "\n".join(line for example in paragraph.splitlines() for line in _example(example, columns))
        if paragraph.startswith(" ")
        else textwrap.fill(paragraph, columns, break_on_hyphens=False)
        for paragraph in doc.strip("\n").split("\n\n")
    )


def run_tyro(
    command: Callable[..., Any], module: str, doc: str, places: Iterable[object], arguments: Sequence[str]
) -> Any:
    """Return what `tyro.cli` does of `command`; of its help, only the tables of options are tyro's."""
    with _no_typeguard():
        return _run_tyro(command, module, doc, places, arguments)


def _run_tyro(
    command: Callable[..., Any], module: str, doc: str, places: Iterable[object], arguments: Sequence[str]
) -> Any:
    import tyro

    options = itertools.takewhile(lambda word: word != "--", arguments)
    if {"-h", "--help"}.isdisjoint(options):
        return tyro.cli(command, prog=called(module), args=list(arguments))
    _join_lines(command)
    printed = _Printed(sys.stdout)
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tyro.cli(command, prog=called(module), description="", args=list(arguments))
    tables = printed.getvalue().partition("\n\n")[2]
    words = ["usage:", *called(module).split(), "[-h]", "[OPTIONS]", *map(str, places)]
    usage = _filled([(word,) for word in words], _columns(), " " * len("usage: "))
    try:
        sys.stdout.write("\n".join([*usage, "", described(doc), "", tables]))  # at once: `head` reads it, and may go
        sys.stdout.flush()
    except OSError as error:  # its cause is not that of a stage's files
        sys.exit(exits.not_written(error))
    sys.exit(0)


@contextlib.contextmanager
def _no_typeguard() -> Generator[None, None, None]:
    """Put a few lines in the place of typeguard, which tyro imports to see that defaults are of their types.

    It would take 0.08 s of each command, and ours are checked before.
    """
    stand_in = ModuleType("typeguard")
    vars(stand_in).update(check_type=_check_type, TypeCheckError=TypeError)
    hidden = sys.modules.setdefault("typeguard", stand_in) is stand_in
    try:
        yield
    finally:
        if hidden:
            del sys.modules["typeguard"]


def _check_type(value: object, kind: Any) -> None:
    """Raise TypeError if a value is not of a type; what is in a list or tuple is not looked at."""
    if not _is_of(value, kind):
        raise TypeError(f"{value!r} is not {kind}")


def _is_of(value: object, kind: Any) -> bool:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return any(_is_of(value, each) for each in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is Annotated:
        return _is_of(value, arguments[0])
    return kind is Any or isinstance(value, origin or kind)


def _join_lines(command: Any) -> None:
    """Give tyro the docstrings of all fields as one line each: it would keep the line breaks of the source.

    The classes are those of a process that prints help and ends.
    """
    from tyro.conf import arg

    docs: dict[str, str] = {}
    for cls in reversed(typing.cast(type, command).__mro__ if dataclasses.is_dataclass(command) else ()):
        docs |= _docs_of_fields(cls)
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        kind = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
        if dataclasses.is_dataclass(kind):
            _join_lines(kind)
        if name in docs:
            hint_of = _list_default if typing.get_origin(kind) is tuple else None
            command.__annotations__[name] = Annotated[hint, arg(help=as_called(docs[name]), help_behavior_hint=hint_of)]


def _list_default(shown: str) -> str:
    """Return what is said of the default of a list; tyro shows nothing in the place of an empty one."""
    return f"(default: {shown or 'none'})"


def _docs_of_fields(cls: Any) -> dict[str, str]:
    """Return the docstring of each field that the source of a class has."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):  # made by code, or built in
        return {}
    statements = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        field.target.id: " ".join(doc.value.value.split())
        for field, doc in itertools.pairwise(statements)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str)
    }


class _Printed(io.StringIO):
    """Collects what is printed, in the encoding and colours of `stream`."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()


def _columns() -> int:
    return min(COLUMNS, shutil.get_terminal_size().columns)


def _example(line: str, columns: int) -> list[str]:
    """Return the lines of an example, which may have a comment; the shell takes them as they are."""
    indent = " " * (len(line) - len(line.lstrip()))
    command, *comment = _COMMENT.split(line.strip(), maxsplit=1)
    if comment:
        line = f"{line.removesuffix(comment[0])}# {comment[0]}"
    if len(line) <= columns:
        return [line]
    inner = f"{indent}  "
    lines = _filled(_units(command), columns - len(indent) - len(" \\"), "  ")
    lines = [*(f"{indent}{each} \\" for each in lines[:-1]), f"{indent}{lines[-1]}"]
    what = textwrap.wrap("".join(comment), columns, initial_indent=f"{inner}# ", subsequent_indent=f"{inner}# ")
    return [*lines, *what]


def _units(command: str) -> list[tuple[str, ...]]:
    """Return the words of a command, an option and its value together."""
    units: list[tuple[str, ...]] = []
    for word in _WORD.findall(command):
        if units and len(units[-1]) == 1 and units[-1][0].startswith("--") and not word.startswith("-"):
            units[-1] += (word,)
        else:
            units.append((word,))
    return units


def _filled(units: Iterable[tuple[str, ...]], columns: int, indent: str) -> list[str]:
    """Return words on as few lines as hold them, further lines indented; those of a unit on one, if it holds them."""
    lines: list[str] = []
    for unit in units:
        whole = " ".join(unit)
        for part in [whole] if len(indent) + len(whole) <= columns else unit:
            if lines and len(lines[-1]) + 1 + len(part) <= columns:
                lines[-1] += f" {part}"
            else:
                lines.append(f"{indent}{part}" if lines else part)
    return lines
