#!/usr/bin/env bash
# Builds the real OpenTelemetry Collector of manifest.yaml into .cache/otelcol, once: a later run
# reuses it while the manifest and this script are unchanged. Progress goes to stderr; the last
# line of stdout is the path of the binary. Exit code 3: go is missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/tests/otelcol
cache=$root/.cache/otelcol
binary=$cache/otelcol
stamp=$cache/otelcol.sha256

started=$SECONDS
say() { printf 'otelcol [%3ds] %s\n' "$((SECONDS - started))" "$*" >&2; }

# collector.py computes the same hash to tell a current binary from a stale one.
hash=$(cat "$here/manifest.yaml" "$here/build.sh" | sha256sum | cut -d ' ' -f 1)
is_current() { [[ -x $binary && -f $stamp && $(<"$stamp") == "$hash" ]]; }

# Module proxies drop a connection now and then, and a cold build fetches hundreds of modules.
try_thrice() {
  local attempt
  for attempt in 1 2 3; do
    "$@" && return
    say "attempt $attempt of 3 failed: ${*:1:3}"
    sleep "$((attempt * 5))"
  done
  return 1
}

# Compiling prints nothing for minutes: say that it is alive. The sleep holds no descriptor of
# ours: it may outlive this script, and a caller reads to the end of the pipe.
heartbeat() {
  while sleep 30 >/dev/null 2>&1; do
    say "still compiling"
  done
}

if is_current; then
  say "up to date"
  echo "$binary"
  exit 0
fi

if ! command -v go >/dev/null; then
  echo "otelcol: go is missing; install Go 1.25 or newer to build the Collector" >&2
  exit 3
fi

mkdir -p "$cache/src"
# Two checks at once must not build into one folder.
exec 9>"$cache/lock"
if ! flock --nonblock 9; then
  say "another build is running; waiting for it"
  flock 9
fi
if is_current; then
  say "up to date"
  echo "$binary"
  exit 0
fi

# Builder and Collector are compiled with the same flags, so that what both need is compiled once:
# no cgo, no paths, no debug information (nobody debugs this binary), and a lazy garbage collector
# in the compiler, which together save about a seventh of the compile time. No VCS stamp: it would make the
# binary depend on the state of this checkout.
export CGO_ENABLED=0 GOWORK=off GOGC="${GOGC:-300}"
export GOFLAGS="${GOFLAGS:-} -trimpath -buildvcs=false"
gcflags=all=-dwarf=false
ldflags='-s -w'

release=$(sed -n 's|^  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver ||p' \
  "$here/manifest.yaml")
cd "$root" # dist.output_path is relative

say "building the real Collector $release; the first time takes several minutes"
say "1/3 installing the builder"
GOBIN=$cache try_thrice nice -n 5 go install -gcflags="$gcflags" -ldflags="$ldflags" \
  "go.opentelemetry.io/collector/cmd/builder@$release"

say "2/3 resolving and fetching modules"
try_thrice nice -n 5 "$cache/builder" --config "$here/manifest.yaml" --skip-compilation

say "3/3 compiling"
heartbeat >/dev/null 9>&- &
trap 'kill "$beat" 2>/dev/null || true' EXIT
beat=$!
nice -n 5 "$cache/builder" --config "$here/manifest.yaml" --skip-generate --skip-get-modules \
  --gcflags "$gcflags" --ldflags "$ldflags"

rm -f "$stamp"
mv "$cache/src/otelcol" "$binary"
echo "$hash" >"$stamp"
say "done"
echo "$binary"
