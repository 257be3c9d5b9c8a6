"""Probes: health checks, scrapes of metrics and synthetic tests, told by path, agent or service.

They are counted and left out of every window: a probe is cheap, always alike and often frequent, so
that baselines with probes in them describe the probes.
"""

from collections.abc import Callable
from typing import Final

from pipeline.normalise.traits import PATH, ROUTE

USER_AGENT: Final = ("user_agent.original", "http.user_agent", "user_agent")

_PATHS: Final = frozenset(
    {
        "/health",
        "/healthz",
        "/livez",
        "/readyz",
        "/ready",
        "/live",
        "/ping",
        "/metrics",
        "/version",
        "/startup",
        "/startupz",
        "/v1/health",
        "/v2/health/live",
        "/v2/health/ready",
        "/health_generate",
        "/is_sleeping",
        "/-/healthy",
        "/-/ready",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
)
_AGENTS: Final = (
    "kube-probe/",
    "googlehc/",
    "elb-healthchecker/",
    "envoy/hc",
    "prometheus/",
    "otelcol",
    "blackbox",
    "consul health check",
    "amazon-route53-health-check",
)


def is_probe_path(text: str) -> bool:
    """Whether a path, request target or URL is one that only probes ask for.

    >>> is_probe_path("/healthz?verbose=1"), is_probe_path("http://h/metrics/"), is_probe_path("/x")
    (True, True, False)
    """
    _, scheme, rest = text.partition("://")
    path = rest[rest.find("/") :] if scheme and "/" in rest else text
    return path.partition("?")[0].rstrip("/") in _PATHS


def _is_probe_agent(text: str) -> bool:
    return text.lower().startswith(_AGENTS)


def _is_synthetic(text: str) -> bool:
    return text.lower() == "test"


def _is_health_service(text: str) -> bool:
    return text.startswith("grpc.health.v1.Health")


PROBES: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool]], ...]] = (
    ((*PATH, *ROUTE), is_probe_path),
    (USER_AGENT, _is_probe_agent),
    (("user_agent.synthetic.type",), _is_synthetic),
    (("rpc.service", "rpc.method"), _is_health_service),
)
"""What tells a probe: keys, and the verdict on the first of them that a request has."""
