"""What the README says is what the code does."""

import asyncio
import hashlib
import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from typer.main import get_command

from pipeline.__main__ import app
from pipeline.clock import Instant
from pipeline.config import parse
from pipeline.decide.overrides import parse_overrides
from pipeline.receive.tokens import Tokens
from tests.e2e.embedded import running
from tests.hand_fleet import static_pool
from tests.readme import README, rewritten

TEXT = README.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_tables_are_those_of_the_code() -> None:
    assert rewritten(TEXT) == TEXT, "run: make readme"


def test_the_configuration_shown_is_valid() -> None:
    [config] = [block for block in blocks("yaml") if "pools:" in block]
    assert parse(config, "README").pools[0].authority == "act"


def test_the_receiver_shown_is_valid() -> None:
    [text] = [block for block in blocks("yaml") if "tokens_file:" in block]
    config = parse(text + "pools: [{name: '*'}]\n", "README")
    assert config.receive.tls.client_ca_file and config.senders[0].name == "gateway-*"


def test_the_tokens_shown_are_valid(tmp_path: Path) -> None:
    [text] = [block for block in blocks("yaml") if "sha256:" in block]
    file = tmp_path / "tokens.yaml"
    file.write_text(text.replace("hex digest of another", hashlib.sha256(b"another").hexdigest()))
    tokens = Tokens(str(file), Instant(0, 0), lambda _: None)
    for token, name in (("a long random text", "gateway-eu"), ("another", "gateway-us")):
        assert tokens.name_of(f"Bearer {token}", Instant(0, 0)) == name


def test_the_override_file_shown_is_valid() -> None:
    [text] = [block for block in blocks("yaml") if "overrides:" in block and "scope" in block]
    assert parse_overrides(text)[0].action == "drain"


def test_the_exporter_shown_is_one_of_the_shipped_collector_configuration() -> None:
    [text] = [block for block in blocks("yaml") if "exporters:" in block]
    kinds = {name.partition("/")[0] for name in yaml.safe_load(text)["exporters"]}
    shipped = yaml.safe_load((README.parent / "otel-collector.yaml").read_text())
    assert kinds <= {name.partition("/")[0] for name in shipped["exporters"]}


def test_the_agent_shown_picks_an_endpoint(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = blocks("python")
    space: dict[str, object] = {}
    exec(compile(code, "README", "exec"), space)
    main = space["main"]
    with running(static_pool(["10.0.0.1:8000"])) as service:
        asyncio.run(main(service.decisions))  # type: ignore[operator]
    assert "send to 10.0.0.1:8000 at weight 1000" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    sorted({m.strip() for m in re.findall(r"^tailrace [^\[\n;#]*", TEXT, re.MULTILINE)}),
)
def test_every_command_shown_exists_with_its_options(line: str) -> None:
    _, name, *arguments = shlex.split(line)
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    options = {option for each in command.params for option in each.opts}
    assert {each for each in arguments if each.startswith("--")} <= options
    assert CliRunner().invoke(command, ["--help"]).exit_code == 0


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z]+)", TEXT))))
def test_every_make_target_shown_exists(target: str) -> None:
    makefile = (README.parent / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_every_path_shown_exists() -> None:
    root = Path(README.parent)
    shown = re.findall(r"`([\w./-]+\.(?:py|yaml|proto)|tests/\w+|pipeline/)`", TEXT)
    places = (root, root / "pipeline")
    missing = [path for path in shown if not any((place / path).exists() for place in places)]
    assert missing == []
