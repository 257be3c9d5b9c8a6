"""The `tailrace` command: parses, calls, exits. Heavy imports wait until their command runs."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.errors import ConfigError, TailraceError

app = typer.Typer(
    name="tailrace",
    help="Closes the loop between OpenTelemetry and LLM traffic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

bench = typer.Typer(help="Measure this machine's Tailrace.", no_args_is_help=True)
app.add_typer(bench, name="bench")

DEFAULT_ADDRESS = "127.0.0.1:4320"

GRPC_ENVIRONMENT = {
    # What gRPC says on its own is no JSON and has no bound; the service says the same itself.
    "GRPC_VERBOSITY": "NONE",
    # Reads sockets in the thread that waits for them, in pieces as large as the message: a fifth
    # less CPU a request. A gRPC that no longer knows these names passes over them.
    "GRPC_EXPERIMENTS": "-event_engine_listener,tcp_frame_size_tuning",
}
"""Read by gRPC when it is first imported; what the user has set stays."""

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file; all defaults without it.")
]
AddressOption = Annotated[
    str, typer.Option("--address", "-a", help="Decision port of a running service.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: JSON lines.")]


@app.command()
def serve(
    config: ConfigOption = None,
    record: Annotated[
        Path | None, typer.Option(help="Record the journal into this empty folder.")
    ] = None,
) -> None:
    """Run the service until Ctrl-C or SIGTERM."""
    for name, value in GRPC_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from pipeline import process, service
    from pipeline.config import load
    from pipeline.telemetry import configure_logs

    tree = load(config)
    configure_logs(tree.telemetry.log_level)
    process.run(service.serve(tree, record))


@app.command()
def watch(
    address: Annotated[str, typer.Argument(help="Decision port.")] = DEFAULT_ADDRESS,
    as_json: JsonOption = False,
    pool: Annotated[list[str] | None, typer.Option(help="Only these pools.")] = None,
    count: Annotated[
        int, typer.Option(help="Stop after this many updates, of changes only; 0 = never.")
    ] = 0,
) -> None:
    """Follow decisions live: weights, circuits and the reasons for them; in a pipe, each update."""
    from pipeline.terminal import watch as run

    asyncio.run(run(address, as_json=as_json, pools=pool or [], count=count))


@app.command()
def why(
    endpoint: Annotated[str, typer.Argument(help="Endpoint id or address.")],
    address: AddressOption = DEFAULT_ADDRESS,
    as_json: JsonOption = False,
) -> None:
    """Explain one endpoint: its weight, its state and the signals behind them."""
    from pipeline.terminal import why as run

    raise typer.Exit(asyncio.run(run(address, endpoint, as_json=as_json)))


@app.command()
def override(
    action: Annotated[
        str,
        typer.Argument(help="pin cap drain exclude hold neutral off | remove | list"),
    ],
    target: Annotated[
        str, typer.Argument(help="Endpoint id or address, node or pool; none for --scope all.")
    ] = "",
    scope: Annotated[str, typer.Option(help="endpoint node pool all")] = "endpoint",
    value: Annotated[int, typer.Option(min=0, max=10_000, help="Weight for pin and cap.")] = 0,
    reason: Annotated[str, typer.Option(help="Shown to everyone who asks why.")] = "",
    owner: Annotated[str, typer.Option(help="Who says so; your user name by default.")] = "",
    expires: Annotated[
        str, typer.Option(help="Duration such as 30m or 2h; empty = until removed.")
    ] = "1h",
    address: AddressOption = DEFAULT_ADDRESS,
    as_json: JsonOption = False,
) -> None:
    """Overrule decisions, or list and remove what overrules them."""
    from pipeline.terminal import override as run

    code = asyncio.run(
        run(
            address,
            action,
            target=target,
            scope=scope,
            value=value,
            reason=reason,
            owner=owner,
            expires=expires,
            as_json=as_json,
        )
    )
    raise typer.Exit(code)


@app.command()
def check(file: Annotated[Path, typer.Argument(help="Configuration to check.")]) -> None:
    """Print the resolved configuration, or its one error."""
    from pipeline.config import dump, load

    print(dump(load(file)), end="")


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(help="A recorded journal.")],
    as_json: JsonOption = False,
) -> None:
    """Feed a journal to the loop again: identical inputs, identical snapshots."""
    from pipeline.terminal import replay as run

    run(folder, as_json=as_json)


@app.command()
def doctor(
    require: Annotated[
        list[str] | None, typer.Option(help="Fail unless these parts are here (or: all).")
    ] = None,
    connect: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Ask a running service instead: its metrics address, such as 127.0.0.1:9464.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Say which real parts this machine has, or what is wrong with a running service."""
    from pipeline import doctor

    if not connect:
        raise typer.Exit(doctor.run(require or [], as_json=as_json))
    if require:
        raise typer.BadParameter("--require asks about this machine, --connect about a service")
    raise typer.Exit(doctor.connect(connect, as_json=as_json))


@app.command()
def evaluate(
    data: Annotated[Path, typer.Option(help="Folder with nab, kpi, services or apps in it.")],
    as_json: JsonOption = False,
    sets: Annotated[str, typer.Option("--sets", help="Which of them.")] = "nab,kpi,services,apps",
) -> None:
    """Accuracy of detection on labelled data, beside simple controls and published figures."""
    from pipeline.evaluate.bank import BankScorer
    from pipeline.evaluate.run import main as run

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    chosen = [name.strip() for name in sets.split(",") if name.strip()]
    code = run(
        data,
        as_json=as_json,
        make_scorer=lambda: BankScorer(tell),
        progress=tell,
        sets=chosen,
    )
    raise typer.Exit(code)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=20.0, help="How long it runs.")] = 60.0,
    headless: Annotated[bool, typer.Option(help="No live display.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Three real llama.cpp servers, real traffic, one made slow, one killed: watch it react."""
    from pipeline.demo.run import run

    raise typer.Exit(run(seconds, headless=headless, as_json=as_json))


@bench.command("load")
def bench_load(
    endpoints: Annotated[int, typer.Option(min=1, max=10_000)] = 1000,
    points: Annotated[int, typer.Option(min=15, help="Data points an endpoint, a second.")] = 40,
    spans: Annotated[int, typer.Option(min=1, help="Spans a second, in total.")] = 2000,
    seconds: Annotated[float, typer.Option(min=1.0)] = 20.0,
) -> None:
    """A fleet reports to a service on one core: ticks a second, cores, memory; one JSON line."""
    import json

    from pipeline.bench.load import load

    print(json.dumps(load(endpoints, points, spans, seconds)))


@bench.command("ingest")
def bench_ingest(
    peers: Annotated[bool, typer.Option("--peers", help="Rotel and the Collector too.")] = False,
    as_json: JsonOption = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="One short round at 1,000 a batch: whether it works.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    seconds: Annotated[float, typer.Option(min=0.2, help="Measured, a round.")] = 10.0,
    warm: Annotated[float, typer.Option(min=0.0, help="Seconds before each.")] = 3.0,
    batches: Annotated[str, typer.Option(help="Items a request.")] = "10,100,1000,8192",
    compression: Annotated[str, typer.Option(help="none, gzip")] = "none,gzip",
    signals: Annotated[str, typer.Option(help="spans, points")] = "spans,points",
    levels: Annotated[str, typer.Option(help="A: receive, decode. B: and fold.")] = "A,B",
    connections: Annotated[int, typer.Option(min=1)] = 1,
    in_flight: Annotated[int, typer.Option(min=1, help="Open requests, of all.")] = 16,
) -> None:
    """Items per second and core, side by side with others; a table, or one JSON document."""
    from pipeline.bench import report
    from pipeline.bench.ingest import run

    plan = report.plan(
        quick=quick,
        peers=peers,
        rounds=rounds,
        seconds=seconds,
        warm_s=warm,
        batches=batches,
        compressions=compression,
        signals=signals,
        levels=levels,
        connections=connections,
        in_flight=in_flight,
    )
    report.ingest(run(plan, report.tell), as_json=as_json)


@bench.command("overload")
def bench_overload(
    as_json: JsonOption = False,
    seconds: Annotated[float, typer.Option(min=1.0, help="Of overload.")] = 60.0,
    offered_x: Annotated[float, typer.Option(min=0.1, help="Times the maximum.")] = 3.0,
    compression: Annotated[str, typer.Option(help="none or gzip")] = "none",
    batch: Annotated[int, typer.Option(min=1, help="Spans a request.")] = 1000,
) -> None:
    """Three times what it can take: what is refused, what is lost, when it is well again."""
    from pipeline.bench import report
    from pipeline.bench.overload import Plan, run

    plan = Plan(
        seconds=seconds,
        offered_x=offered_x,
        compression=report.compression(compression),
        batch=batch,
    )
    report.figures("Overload", [run(plan, report.tell)], as_json=as_json)


@bench.command("fleet")
def bench_fleet(
    as_json: JsonOption = False,
    seconds: Annotated[float, typer.Option(min=1.0, help="Measured, a variant.")] = 60.0,
    scrape: Annotated[str, typer.Option(help="Seconds between scrapes, a variant each.")] = "15,1",
) -> None:
    """The reference fleet of 1,200 engines: cores, memory, age of decisions."""
    from pipeline.bench import report
    from pipeline.bench.fleet import run

    variants = [run(each, seconds, report.tell) for each in report.seconds("--scrape", scrape)]
    report.figures("Reference fleet", variants, as_json=as_json)


@bench.command("detect")
def bench_detect(
    as_json: JsonOption = False,
    series: Annotated[str, typer.Option(help="How many at a time.")] = "1000,10000,40000",
    quick: Annotated[
        bool, typer.Option("--quick", help="A fifth of the rounds: whether it works.")
    ] = False,
) -> None:
    """Detectors one by one and all together: updates a second, memory a series."""
    from pipeline.bench import report
    from pipeline.bench.detect import QUICK, Plan, run

    sizes = report.counts("--series", series)
    plan = Plan(sizes=sizes, **QUICK) if quick else Plan(sizes=sizes)
    report.detectors(run(plan, report.tell), as_json=as_json)


@bench.command("start")
def bench_start() -> None:
    """Seconds from start to serving, and memory when idle; one JSON line."""
    import json

    from pipeline.bench.load import start

    print(json.dumps(start()))


def main() -> None:
    """Entry point: one line for every expected error, exit code 2 for a configuration."""
    try:
        app()
    except ConfigError as error:
        print(f"tailrace: {error}", file=sys.stderr)
        sys.exit(ConfigError.exit_code)
    except TailraceError as error:
        print(f"tailrace: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
