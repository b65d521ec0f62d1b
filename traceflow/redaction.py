"""Taking out of evidence what says where and by whom it was made, and secrets: paths, names of hosts and of users, keys.

What explains a run stays: times, sizes, names of operations and scopes, the name of a source file with its line, and
paths within installed libraries. Equal names stay equal, so that whatever was joined by name still is.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

Value = TypeVar("Value")

_HIDDEN = "…"
# Absolute paths, those below ~, and those of Windows; a URL's and a scope's begin within a word.
_PATH = re.compile(
    r"(?<![\w.)\]}/~:…<-])(?:file://)?(?:~[\w.-]*|[A-Za-z]:)?(?:[/\\](?:[^\s/\\:*?\"'<>|,;()\[\]{}=]+)){2,}[/\\]?"
)
_SOURCE = re.compile(
    r"(?<![\w./…-])(?:[\w.@+-]+/)+(?=[\w.@+-]+\.(?:py|pyx|ipynb|cc|cpp|cu|cuh|c|h|hpp|rs|toml|json)\b)"
)
_LIBRARY = re.compile(r"^.*?(?=(?:site|dist)-packages[/\\])")
_USER = re.compile(r"(?:[/\\](?:home|Users|user|u)[/\\]|/(?:scratch|mnt|data|nfs)/(?:home|users?)/)([\w.@+-]+)")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
# What profilers call their files: XSpaces <host>.xplane.pb, Kineto's <host>_<pid>.<time>.pt.trace.json.
_NAMED_BY_HOST = re.compile(r"^(.+?)(?:\.xplane\.pb|_\d+\.\d+\.pt\.trace\.json)(?:\.gz)?$")
_LONG = 1_000  # characters that no name of a file has
_NOBODY = frozenset({"", "root", "user", "localhost", "unknown", "host", "trace", "rank0"})
# What secrets are called, in the environment and in metadata; a model has tokens and keys of its own.
_SECRET = re.compile(
    r"(?i)(?:^|[_-])(?:api_?key|access_?key|secret|password|passwd|credentials?|(?:[a-z]+_)?token)$"
    r"|^[A-Z0-9_]*_(?:TOKEN|KEY|SECRET|PASSWORD|CREDENTIALS)$"
)
_TOLD_SECRET = re.compile(
    r"(?i)((?:api[_-]?key|access[_-]?key|secret|password|passwd|(?:api|auth|access)[_-]?token|--token|authorization)"
    r"[\"']?\s*(?:=|:|\s)\s*(?:bearer\s+)?[\"']?)([^\s\"',;&)\]}]+)"
)
_KNOWN_SECRET = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-|ghp_|gho_|github_pat_|hf_|xox[abp]-|AKIA|AIza)[A-Za-z0-9_-]{16,}|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
)
_SHORTEST_SECRET = 8  # characters
_KEYS = frozenset({"hostname", "host", "host_name", "username", "user"})


class Redaction:
    """Replaces what is not to be told; the same text always becomes the same.

    Args:
        hosts: Names of hosts, which become host0, host1 and so on.
        users: Names of users, which become user0 and so on.
        files: Names of hosts that are replaced only where a name of a file begins with them.
        secrets: Texts that vanish wherever they stand.

    Example:
        >>> hide = Redaction(["node17.example.org"], ["ada"])
        >>> hide.text("/srv/ada/model/train.py:12 on node17")
        '…/train.py:12 on host0'
        >>> hide.text("/srv/ada/v/lib/python3.11/site-packages/jax/_src/pjit.py:250")
        '…/site-packages/jax/_src/pjit.py:250'
    """

    def __init__(
        self, hosts: Iterable[str], users: Iterable[str], files: Iterable[str] = (), secrets: Iterable[str] = ()
    ) -> None:
        self._secrets = _any_of({one for one in secrets if len(one) >= _SHORTEST_SECRET}, before="", after="")
        self._named = {**_numbered("host", {*hosts, *files}), **_numbered("user", {*users})}
        words = self._named.keys() - {*files}
        self._words = _any_of(words, before=r"(?<![A-Za-z0-9])", after=r"(?![A-Za-z0-9])")
        self._files = _any_of({*files} & self._named.keys(), before=r"(?<![^/])", after=r"(?=\.|$)")
        self._known: dict[str, str] = {}

    @classmethod
    def of_everything_in(cls, *values: object) -> Redaction:
        """For all hosts and users that some evidence names, and those of this machine.

        A name of letters alone that stands for a host may as well be that of a model, which a file was called by: it is
        replaced in names of files only.
        """
        hosts, users = {socket.gethostname(), socket.getfqdn()}, {_this_user(), Path.home().name}
        found, secrets = set[str](), {value for name, value in os.environ.items() if _SECRET.search(name)}
        for text, key in _texts(values):
            if _SECRET.search(key):
                secrets.add(text)
            users.update(_USER.findall(text))
            if len(text) < _LONG and (name := _NAMED_BY_HOST.match(re.split(r"[/\\]", text)[-1])):
                found.add(name[1])
            if key in _KEYS:
                (users if key.startswith("user") else found).add(text)
        files = {name for name in found - hosts if name.isalpha()}
        return cls(hosts | (found - files), users, files, secrets)

    def text(self, text: str) -> str:
        """A text without paths, hosts, users, addresses and secrets."""
        if (known := self._known.get(text)) is None:
            known = _KNOWN_SECRET.sub(_HIDDEN, _TOLD_SECRET.sub(rf"\1{_HIDDEN}", self._secrets.sub(_HIDDEN, text)))
            known = _PATH.sub(lambda path: _last(path[0]), known)
            known = _ADDRESS.sub("address", _SOURCE.sub(f"{_HIDDEN}/", known))
            for names in (self._words, self._files):
                known = names.sub(lambda name: self._named[name[0]], known)
            self._known[text] = known
        return known

    def name(self, path: str) -> str:
        """What was opened, by its last part alone."""
        return self.text(Path(path).name or _HIDDEN)

    def of(self, value: Value) -> Value:
        """The same with every text in it redacted: of dataclasses, mappings, lists and tuples, however deep."""
        redacted: Any = value
        if isinstance(value, str) and not isinstance(value, Enum):
            redacted = self.text(value)
        elif isinstance(value, msgspec.Struct):
            redacted = msgspec.structs.replace(
                value, **{name: self.of(getattr(value, name)) for name in value.__struct_fields__}
            )
        elif is_dataclass(value) and not isinstance(value, type):
            redacted = replace(value, **{f.name: self.of(getattr(value, f.name)) for f in fields(value) if f.init})
        elif isinstance(value, Mapping):
            redacted = {self.of(key): self.of(item) for key, item in value.items()}
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            redacted = type(value)(*map(self.of, value))
        elif isinstance(value, list | tuple | frozenset | set):
            redacted = type(value)(map(self.of, value))
        return cast("Value", redacted)


def _numbered(kind: str, names: set[str]) -> dict[str, str]:
    """A number for each name, which what stands before its first dot shares."""
    told = sorted(name for name in names if not name.isdecimal() and name not in _NOBODY)
    numbered = {name: f"{kind}{number}" for number, name in enumerate(dict.fromkeys(map(_short, told)))}
    return numbered | {name: numbered[_short(name)] for name in told}


def _short(name: str) -> str:
    return name.partition(".")[0] or name


def _any_of(names: Iterable[str], *, before: str, after: str) -> re.Pattern[str]:
    """Any of some names, the longest first; no names match nothing."""
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return re.compile(f"{before}(?:{'|'.join(longest_first)}){after}" if longest_first else r"(?!)")


def _last(path: str) -> str:
    """The last part of a path, and of one in a library all from there on."""
    library = _LIBRARY.match(path)
    kept = path[library.end() :] if library else re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return f"{_HIDDEN}/{kept}"


def _this_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in many containers
        return ""


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a value, with the name of the field or the key that it stands under."""
    if isinstance(value, str):
        yield value, key
    elif is_dataclass(value):
        for field in fields(value):
            yield from _texts(getattr(value, field.name), field.name)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(name)
            yield from _texts(item, str(name).lower())
    elif isinstance(value, list | tuple | frozenset | set):
        for item in value:
            yield from _texts(item, key)
