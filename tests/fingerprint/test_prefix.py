import hashlib
from pathlib import Path

import numpy as np
import pytest
import xxhash

from pipeline.clock import NS_PER_S, Instant
from pipeline.errors import ConfigError
from pipeline.fingerprint.config import PrefixConfig
from pipeline.fingerprint.prefix import PrefixKeys, load_secret
from tests.builders import START
from tests.fingerprint.columns import traits

SECRET = bytes(range(32))
DAY = Instant(0, 20_000 * 86_400 * NS_PER_S)
KEYS = PrefixKeys(SECRET, PrefixConfig())
PROMPTS = 1_000_000


def test_a_million_guessed_prompts_confirm_none_without_the_secret() -> None:
    """Every one of 100 keys is of a prompt among the guessed ones; hashing them tells nothing."""
    prompts = [f"prompt {i}" for i in range(PROMPTS)]
    leaked = np.array(
        [KEYS.key(prompts[i * 9_973], DAY, tenant="a") for i in range(100)], np.uint64
    )
    plain = np.array([xxhash.xxh3_64_intdigest(each.encode()) for each in prompts], np.uint64)
    other = PrefixKeys(bytes(32), PrefixConfig())
    with_wrong_secret = np.array([other.key(each, DAY, tenant="a") for each in prompts[:100_000]],
                                 np.uint64)  # fmt: skip
    unkeyed = np.array(
        [
            int.from_bytes(hashlib.blake2b(each.encode(), digest_size=8).digest(), "little")
            for each in prompts
        ],
        np.uint64,
    )
    for guesses in (plain, unkeyed, with_wrong_secret):
        assert not np.isin(leaked, guesses).any()
    assert np.isin(leaked, np.array([KEYS.key(prompts[0], DAY, tenant="a")], np.uint64)).sum() == 1


def test_one_prompt_of_two_tenants_has_two_keys() -> None:
    keys = {KEYS.key("hello", DAY, tenant=tenant) for tenant in ("", "a", "b")}
    assert len(keys) == 3


@pytest.mark.parametrize("name", ["source", "model", "adapter", "cache_salt"])
def test_every_input_makes_another_key(name: str) -> None:
    assert KEYS.key("hello", DAY, **{name: "x"}) != KEYS.key("hello", DAY)


def test_inputs_do_not_run_into_each_other() -> None:
    left = KEYS.key("c", DAY, model="a", adapter="b")
    assert left != KEYS.key("c", DAY, model="ab")
    assert left != KEYS.key("bc", DAY, model="a")


def test_keys_are_as_defined() -> None:
    """The definition in the module, written out: whoever routes must come to the same."""
    secret = hashlib.blake2b(SECRET, digest_size=64).digest()
    tenant = hashlib.blake2b(
        (20_000).to_bytes(8, "little") + b"acme", digest_size=32, key=secret,
        person=b"tailrace-tenant",
    ).digest()  # fmt: skip
    parts = (b"prefix", b"llama", b"lora", b"salt", b"hash-of-blocks")
    data = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    made = hashlib.blake2b(data, digest_size=8, key=tenant, person=b"tailrace-prefix").digest()
    assert KEYS.key(
        "hash-of-blocks", DAY, tenant="acme", model="llama", adapter="lora", cache_salt="salt"
    ) == int.from_bytes(made, "little")


def test_keys_change_with_the_day_and_the_former_ones_are_known_for_a_while() -> None:
    before = KEYS.key("hello", DAY.plus_s(-1.0), tenant="a")
    after = KEYS.key("hello", DAY, tenant="a")
    assert before != after
    assert KEYS.key("hello", DAY.plus_s(86_399.0), tenant="a") == after
    assert KEYS.former("hello", DAY.plus_s(899.0), tenant="a") == before
    assert KEYS.former("hello", DAY.plus_s(900.0), tenant="a") == 0


def test_columns_have_the_keys_of_their_rows() -> None:
    rows = traits(
        6,
        prefix=["p1", "p1", None, None, None, "p2"],
        conversation=["c1", None, "c1", None, "p1", None],
        tenant=["a", "a", "a", "a", "b", None],
        model=["m", "m", None, "m", "m", None],
    )
    found = KEYS.keys(rows, DAY).tolist()
    assert found[0] == found[1] == KEYS.key("p1", DAY, tenant="a", model="m")
    assert found[2] == KEYS.key("c1", DAY, source="conversation", tenant="a")
    assert found[3] == 0
    assert found[4] == KEYS.key("p1", DAY, source="conversation", tenant="b", model="m")
    assert found[5] == KEYS.key("p2", DAY)


def test_nothing_named_costs_no_hash_and_gives_no_key() -> None:
    assert KEYS.keys(traits(3), START).tolist() == [0, 0, 0]
    assert KEYS.key("", START) == 0


def test_a_secret_comes_from_a_file_or_is_of_this_process_alone(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"s" * 40 + b"\n")
    assert load_secret(str(file)) == b"s" * 40
    assert len(load_secret("")) == 32
    assert load_secret("") != load_secret("")


@pytest.mark.parametrize("content", [b"", b"short", None])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"fingerprint\.prefix\.secret_file"):
        load_secret(str(file))
    with pytest.raises(ValueError, match="32 bytes"):
        PrefixKeys(content or b"", PrefixConfig())
