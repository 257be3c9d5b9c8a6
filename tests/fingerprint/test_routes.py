import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fingerprint.config import RouteConfig
from pipeline.fingerprint.routes import MAX_POOLS, WORDS, Routes, is_id, path_of

WORD = st.text("abc{}:*%", min_size=1, max_size=4) | st.sampled_from(sorted(WORDS))
PATHS = st.lists(WORD, max_size=10).map("/".join)


def templates(config: RouteConfig, *paths: str) -> list[str]:
    routes = Routes(config)
    return [routes.template("p", path) for path in paths]


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1//chat/completions?stream=1#x", "/v1/chat/completions"),
        ("https://api.example:8443/v1/completions?next=/a", "/v1/completions"),
        ("/v1/files/42/content", "/v1/files/{}/content"),
        ("/v1/files/6fa459ea-ee8a-3ca4-894e-db77e160355e", "/v1/files/{}"),
        ("/v1/files/file-9ZxAbCdEf0123456789", "/v1/files/{}"),
        ("/v1/batches/batch_67ab0123456789abcdef", "/v1/batches/{}"),
        ("/cas/e3b0c44298fc1c14/x", "/cas/{}/x"),
        ("/usage/2024-02-29", "/usage/{}"),
        ("/usage/2024-02-29T10:00:00Z", "/usage/{}"),
        ("/users/ann@example.org", "/users/{}"),
        ("/users/ann%40example.org", "/users/{}"),
        ("/nodes/10.0.0.7:8000", "/nodes/{}"),
        ("/t/eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", "/t/{}"),
        ("/v2/models/llama-3-70b/versions/1/infer", "/v2/models/llama-3-70b/versions/{}/infer"),
        ("/openai/deployments/gpt-4o/chat/completions?api-version=2024-06-01",
         "/openai/deployments/gpt-4o/chat/completions"),
        ("/v1/models/{model}/:action/<int:id>/*", "/v1/models/{}/{}/{}/{}"),
        ("/docs/caf\u00e9", "/docs/caf\u00e9"),
        ("/" + "x" * 49, "/{}"),
        ("/a/b/c/d/e/f/g/h/i/j", "/a/b/c/d/e/f/g/h/*"),
        ("*", "/{}"),
        ("/", "/"),
        ("", ""),
    ],
)  # fmt: skip
def test_known_shapes_are_parameters_and_words_stay(path: str, template: str) -> None:
    assert templates(RouteConfig(), path) == [template]


@pytest.mark.parametrize(
    "word", ["v1", "chat", "llama", "gpt-4o", "Llama-3.1-70B-Instruct", "infer"]
)
def test_names_that_people_give_are_no_ids(word: str) -> None:
    assert not is_id(word)


def test_a_place_with_too_many_words_becomes_a_parameter_and_what_follows_is_shared() -> None:
    routes = Routes(RouteConfig(max_children=3))
    before = [routes.template("p", f"/users/{name}/keys") for name in ("ann", "bob", "cy")]
    assert before == ["/users/ann/keys", "/users/bob/keys", "/users/cy/keys"]
    version = routes.version
    assert routes.template("p", "/users/dee/keys") == "/users/{}/keys"
    assert routes.version > version
    assert routes.template("p", "/users/ann/keys") == "/users/{}/keys"
    assert routes.template("p", "/users/7/keys") == "/users/{}/keys"
    assert routes.template("p", "/users") == "/users"
    assert [str(each.template) for each in routes.learned()["p"]] == ["/users/{}"]
    assert routes.learned()["p"][0].words == ("ann", "bob", "cy")


def test_words_of_inference_interfaces_stay_whatever_strangers_ask_for() -> None:
    routes = Routes(RouteConfig())
    for i in range(5_000):
        routes.template("p", f"/v1/{'x' * (i % 40)}q{i}z/completions")
    assert routes.template("p", "/v1/chat/completions") == "/v1/chat/completions"
    assert routes.template("p", "/v1/embeddings") == "/v1/embeddings"


def test_pools_learn_apart() -> None:
    routes = Routes(RouteConfig(max_children=2))
    for name in ("ann", "bob", "cy"):
        routes.template("p", f"/{name}")
    assert routes.template("q", "/ann") == "/ann"


def test_a_dry_run_shows_what_it_would_do_and_does_it_not() -> None:
    names = ["/u/ann", "/u/bob", "/u/cy", "/u/7"]
    routes = Routes(RouteConfig(max_children=2, dry_run=True))
    assert [routes.template("p", name) for name in names] == ["/u/ann", "/u/bob", "/u/cy", "/u/{}"]
    assert routes.learned()["p"][0].template == "/u/{}"


def test_memory_is_bounded_for_each_pool_and_in_pools() -> None:
    config = RouteConfig(max_children=8, max_nodes=64)
    routes = Routes(config)
    names = "abcdefghij"
    for words in product(names, repeat=4):
        routes.template("p", "/".join(words))
    for i in range(2 * MAX_POOLS):
        routes.template(f"pool-{i}", "/a/b")
    state = routes.export_state()
    assert len(state) == MAX_POOLS
    assert json.dumps(state["p"]).count("next") <= config.max_nodes + len(WORDS) + 2
    assert routes.refused
    routes.forget("p")
    assert "p" not in routes.export_state()


def test_a_pool_beyond_all_room_still_has_shapes_and_known_words() -> None:
    routes = Routes(RouteConfig())
    for i in range(MAX_POOLS):
        routes.template(f"pool-{i}", "/a")
    assert routes.template("late", "/v1/files/42/secret") == "/v1/files/{}/{}"


@given(st.lists(PATHS, max_size=40), st.integers(2, 4), st.integers(16, 24))
def test_a_restored_table_gives_the_same_templates(paths: list[str], most: int, nodes: int) -> None:
    config = RouteConfig(max_children=most, max_nodes=nodes)
    routes, restored = Routes(config), Routes(config)
    for path in paths:
        routes.template("p", path)
    state = json.loads(json.dumps(routes.export_state()))
    restored.restore(state)
    assert restored.export_state() == routes.export_state()
    assert [restored.template("p", path) for path in paths] == [
        routes.template("p", path) for path in paths
    ]


@given(st.lists(PATHS, max_size=60))
def test_templates_settle_and_each_is_its_own_template(paths: list[str]) -> None:
    routes = Routes(RouteConfig(max_children=2))
    for path in paths * 12:
        routes.template("p", path)
    version = routes.version
    settled = [routes.template("p", path) for path in paths]
    assert routes.version == version
    assert [routes.template("p", path) for path in paths] == settled
    whole = [each for each in settled if each and "*" not in each]
    assert [routes.template("p", each) for each in whole] == whole


@given(st.text(max_size=700))
def test_any_text_has_a_path_and_a_template(text: str) -> None:
    path = path_of(text)
    assert path == "" if not text else path.startswith("/")
    assert len(Routes(RouteConfig()).template("p", text)) <= 514


@pytest.mark.parametrize(
    "state",
    [
        {"p": 3},
        {"p": {"next": {}}},
        {"p": {"next": {}, "words": ["a"]}},
        {"p": {"next": {str(i): {"next": {}, "words": None} for i in range(2000)}, "words": None}},
    ],
)
def test_state_of_another_shape_is_refused(state: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Routes(RouteConfig()).restore(state)
