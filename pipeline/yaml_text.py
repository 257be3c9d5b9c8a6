"""YAML text -> plain data, or one `ConfigError`, whatever is wrong with the text."""

from typing import Any, Final

import yaml

from pipeline.errors import ConfigError

NOT_YAML: Final = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""PyYAML passes on what its scalars raise (a 13th month, `!!bool x`) and nests without a bound."""


def parse_yaml(text: str) -> Any:
    """The document in `text`, None when it is empty.

    >>> parse_yaml("a: [1, x]")
    {'a': [1, 'x']}
    >>> parse_yaml("a: 2020-13-45")
    Traceback (most recent call last):
    ...
    pipeline.errors.ConfigError: not YAML: month must be in 1..12
    """
    try:
        return yaml.safe_load(text)
    except NOT_YAML as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())[:300]}") from error
