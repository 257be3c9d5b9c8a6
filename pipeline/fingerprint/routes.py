"""Paths -> route templates: known shapes of ids, then places that turn out to hold anything.

A path's words are looked at one by one. What has the shape of an id (number, UUID, hash, token,
date, address) is a parameter, `{}`; so is a place of the path in which more than `max_children`
different words were seen, as in a trie that folds its children into one (the heuristic and the
low-cardinality trie of Grafana Beyla, the names that Tempo's DRAIN finds). Words of the usual
inference interfaces always stay. Learning is bounded for each pool and survives restarts.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pipeline.fingerprint.config import RouteConfig

PARAMETER: Final = "{}"
REST: Final = "*"
"""Stands for everything beyond the last word that is looked at."""
MAX_WORDS: Final = 8
"""Of a path; inference interfaces have up to six."""
MAX_PATH: Final = 512
MAX_WORD: Final = 48
"""Longer words are parameters: nobody types them."""
MAX_POOLS: Final = 256
"""As many as there may be; paths of further ones have shapes only."""
MAX_EXAMPLES: Final = 3
"""Words shown for a place that became a parameter."""

WORDS: Final = frozenset(
    """
    v1 v2 v3 v1beta v1beta1 api openai anthropic deployments engines chat completions completion
    responses messages embeddings embedding models model versions generate generate_stream infer
    inference rerank score pooling classify tokenize detokenize invocations moderations audio
    transcriptions translations speech images generations edits variations files batches
    count_tokens
    input_items cancel content threads runs assistants fine_tuning jobs uploads lora adapters
    predict predictions encode slots props apply-template repository index load unload
    """.split()  # noqa: SIM905  # read as a list of words
)
"""Of OpenAI's, Anthropic's, KServe's, Triton's, vLLM's, SGLang's, llama.cpp's interfaces."""

_ID: Final = re.compile(
    r"""
    \d+                                                     # a number
    | \d{4}-\d\d-\d\d(?:[T_ ].*)?                           # a date
    | [0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}  # a UUID
    | (?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}                     # a hash
    | (?=.*\d)[\w=+.~-]*[0-9A-Za-z]{16,}[\w=+.~-]*          # a token, with or without a prefix
    | (?=.*\d)[\w=+~-]{32,}                                 # base64, made safe for URLs
    | [^@]+(?:@|%40)[^@.]+\.[^@]+                           # an address of electronic mail
    | \d{1,3}(?:\.\d{1,3}){3}(?::\d+)?                      # an IP address
    """,
    re.VERBOSE | re.ASCII,
)
_GIVEN: Final = re.compile(r"\{[^/{}]*\}|:\w+|<[^/<>]*>|\*+|\(\?.*\)", re.ASCII)
"""A parameter in the templates of web frameworks: `{id}`, `:id`, `<int:id>`, `*`."""


class Learned(NamedTuple):
    """A place in paths that holds anything."""

    template: str
    """Of the path up to and with the place."""
    words: tuple[str, ...]
    """Some of those seen there."""


def path_of(text: str) -> str:
    """The path of a URL, request target or path, without query, fragment and matrix parameters.

    >>> [path_of(text) for text in ("http://h:1/a/b?c#d", "/a;x=1/", "a", "https://h", "")]
    ['/a/b', '/a', '/a', '/', '']
    """
    if not text:
        return ""
    text = text[:MAX_PATH]
    scheme, is_url, rest = text.partition("://")
    if is_url and "/" not in scheme and "?" not in scheme:
        start = rest.find("/")
        text = rest[start:] if start >= 0 else "/"
    for mark in "?#;":
        text = text.partition(mark)[0]
    text = text.rstrip("/")
    return text if text.startswith("/") else f"/{text}"


def is_id(word: str) -> bool:
    """Whether a word of a path has the shape of an id, or is too long for a word.

    >>> words = ("42", "v1", "chat", "cafe", "deadbeef01", "gpt-4o", "file-9ZxAbCdEf01234567")
    >>> [word for word in words if is_id(word)]
    ['42', 'deadbeef01', 'file-9ZxAbCdEf01234567']
    """
    return len(word) > MAX_WORD or _ID.fullmatch(word) is not None


def shaped(path: str) -> list[str]:
    """The words of a path or template, parameters and ids as `{}`; empty words left out.

    >>> shaped("/v1//files/42/<name>/x"), shaped("/")
    (['v1', 'files', '{}', '{}', 'x'], [])
    """
    found: list[str] = []
    for word in path.split("/"):
        if not word:
            continue
        if len(found) == MAX_WORDS:
            found.append(REST)
            break
        if word in WORDS or not (is_id(word) or _GIVEN.fullmatch(word)):
            found.append(word)
        else:
            found.append(PARAMETER)
    return found


class _Node:
    """One place of a trie: its next words, or, once there were too many, one for all of them."""

    __slots__ = ("any", "examples", "next")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        self.any: _Node | None = None
        """What follows any word, once the place is a parameter; also in `next`."""
        self.examples: tuple[str, ...] = ()

    def free(self) -> list[str]:
        """The next words that are neither an interface's nor a parameter."""
        return [word for word in self.next if word != PARAMETER and word not in WORDS]

    def open(self, examples: tuple[str, ...]) -> None:
        """Let the place hold anything: what followed each of its words follows any."""
        words = self.free()
        self.any = self.next.setdefault(PARAMETER, _Node())
        self.examples = examples[:MAX_EXAMPLES]
        for word in words:
            self.any.join(self.next.pop(word))

    def join(self, other: "_Node") -> None:
        """Take over what follows `other`."""
        if other.any is not None and self.any is None:
            self.open(other.examples)
        for word, child in other.next.items():
            mine = self.next.get(word)
            if mine is None and word not in WORDS:
                mine = self.any
            if mine is None:
                self.next[word] = child
            else:
                mine.join(child)

    def size(self) -> int:
        """How many places there are below."""
        return sum(1 + child.size() for child in self.next.values())


class Routes:
    """Route templates of every pool."""

    def __init__(self, config: RouteConfig) -> None:
        """Nothing learned yet."""
        self._config = config
        self._roots: dict[str, _Node] = {}
        self._nodes: dict[str, int] = {}
        self.version = 0
        """Moves when a template given before is not what would be given now."""
        self.refused = 0
        """Paths of which not every word found room."""

    def template(self, pool: str, path: str) -> str:
        """The template of a path, target, URL or framework's route, learning from it; "" for "".

        >>> routes = Routes(RouteConfig(max_children=2))
        >>> [routes.template("p", f"/{name}/x") for name in ("ann", "bob", "cy", "ann")]
        ['/ann/x', '/bob/x', '/{}/x', '/{}/x']
        """
        path = path_of(path)
        if not path:
            return ""
        words = shaped(path)
        learned = self._learn(pool, words)
        return "/" + "/".join(words if self._config.dry_run else learned)

    def learned(self) -> dict[str, tuple[Learned, ...]]:
        """What was learned, by pool: the places that hold anything, or would without a dry run."""
        found = {pool: tuple(_places(root, "")) for pool, root in self._roots.items()}
        return {pool: places for pool, places in found.items() if places}

    def forget(self, pool: str) -> None:
        """Make room: the pool is no more."""
        self._roots.pop(pool, None)
        self._nodes.pop(pool, None)

    def _learn(self, pool: str, words: list[str]) -> list[str]:
        if pool not in self._roots and len(self._roots) < MAX_POOLS:
            self._roots[pool], self._nodes[pool] = _Node(), 0
        node = self._roots.get(pool)
        found = []
        for word in words:
            shown = word if node is None or word in node.next else self._add(pool, node, word)
            if node is None and word not in WORDS:
                shown = PARAMETER
            found.append(shown)
            node = None if node is None else node.next.get(shown)
        self.refused += node is None
        return found

    def _add(self, pool: str, node: _Node, word: str) -> str:
        """Take up a new word of a place, as it is or as the parameter that the place becomes."""
        is_fixed = word == PARAMETER or word in WORDS
        if node.any is not None and not is_fixed:
            return PARAMETER
        room = self._config.max_nodes + is_fixed * len(WORDS) - self._nodes[pool]
        if room <= 0:
            return word if is_fixed else PARAMETER
        if is_fixed or len(node.free()) < self._config.max_children:
            node.next[word] = _Node()
            self._nodes[pool] += 1
            return word
        node.open((*node.free(), word))
        self._nodes[pool] = self._roots[pool].size()
        self.version += 1
        return PARAMETER

    def export_state(self) -> dict[str, Any]:
        """What was learned, as plain maps; see `restore`."""
        return {pool: _exported(root) for pool, root in self._roots.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up exported state in place of what is there; `ValueError` when it does not fit."""
        roots = {str(pool): _restored(part, 0) for pool, part in state.items()}
        sizes = {pool: root.size() for pool, root in roots.items()}
        most = self._config.max_nodes + len(WORDS) + 1
        if len(roots) > MAX_POOLS or max(sizes.values(), default=0) > most:
            raise ValueError("more routes than are kept")
        self._roots, self._nodes = roots, sizes
        self.version += 1


def _places(node: _Node, template: str) -> list[Learned]:
    found: list[Learned] = []
    if node.any is not None:
        found.append(Learned(f"{template}/{PARAMETER}", node.examples))
    for word, child in node.next.items():
        found += _places(child, f"{template}/{word}")
    return found


def _exported(node: _Node) -> dict[str, Any]:
    return {
        "next": {word: _exported(child) for word, child in node.next.items()},
        "words": list(node.examples) if node.any is not None else None,
    }


def _restored(part: Mapping[str, Any], depth: int) -> _Node:
    if depth > MAX_WORDS + 1:
        raise ValueError("a route is too long")
    node = _Node()
    node.next = {str(word): _restored(child, depth + 1) for word, child in part["next"].items()}
    if part["words"] is not None:
        node.examples = tuple(str(word) for word in part["words"])[:MAX_EXAMPLES]
        node.any = node.next[PARAMETER]
    return node
