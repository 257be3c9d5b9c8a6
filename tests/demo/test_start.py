"""What the demo tells the service and the Collector."""

from pathlib import Path

import yaml

from pipeline.config import parse
from pipeline.demo.collector import Collector
from pipeline.demo.start import Ports, configuration

PORTS = Ports("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


def test_the_service_runs_on_its_defaults_but_for_addresses_authority_and_kept_state() -> None:
    config = parse(yaml.safe_dump(configuration(PORTS)), "demo")
    defaults = parse("", "defaults")
    assert config.receive.listen == PORTS.otlp
    assert config.publish.listen == PORTS.decisions
    assert config.telemetry.metrics_listen == PORTS.metrics
    assert config.state.folder == ""
    (everything,) = config.pools
    assert (everything.name, everything.authority) == ("*", "act")
    assert (config.decide, config.loop, config.fold, config.requests) == (
        defaults.decide,
        defaults.loop,
        defaults.fold,
        defaults.requests,
    )


def test_the_collector_scrapes_every_engine_from_the_file_that_it_is_given(tmp_path: Path) -> None:
    engines = ["127.0.0.1:11", "127.0.0.1:12"]
    collector = Collector(tmp_path, engines=engines, service=PORTS.otlp)
    assert yaml.safe_load((tmp_path / "engines.yaml").read_text()) == [{"targets": engines}]
    assert len({collector.otlp, collector.health, PORTS.otlp}) == 3
