#!/usr/bin/env bash
# A Docker engine for the tests, apart from any other on the machine: its own folder, socket and no network.
#
#   engine.sh start    install one from the distribution where there is none, start it, print its address
#   engine.sh stop     end it and remove its folder
#   engine.sh status   print its address, or fail
#
# FPENV_TEST_DOCKER_DIR names the folder. Tests look there by themselves, or at FPENV_TEST_DOCKER_HOST.
set -euo pipefail

dir=${FPENV_TEST_DOCKER_DIR:-${TMPDIR:-/tmp}/fpenv-test-docker}
address=unix://$dir/docker.sock

fail() { echo "engine.sh: $1" >&2; exit 1; }

# Talks to the engine without a Docker client, which need not be there.
answers() {
  [ -S "$dir/docker.sock" ] || return 1
  python3 - "$dir/docker.sock" <<'PY'
import socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.settimeout(5)
    try:
        link.connect(sys.argv[1])
        link.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        sys.exit(b" 200 " not in link.recv(64))
    except OSError:
        sys.exit(1)
PY
}

runs() { [ -f "$dir/docker.pid" ] && kill -0 "$(cat "$dir/docker.pid")" 2>/dev/null; }

start() {
  if runs && answers; then echo "$address"; return; fi
  [ "$(id -u)" = 0 ] || fail "expected root to start an engine, got user $(id -un); or set FPENV_TEST_DOCKER_HOST to one that runs"
  if ! command -v dockerd >/dev/null; then
    [ "${1:-}" != --installed ] || fail "no dockerd here; 'tests/docker/engine.sh start' installs it"
    command -v apt-get >/dev/null || fail "no dockerd and no apt-get here; install a Docker engine"
    # Not dpkg's own start of the service: only ours is to run.
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -qqy --no-install-recommends -o DPkg::options::=--force-confold docker.io >&2
  fi
  rm -f "$dir/docker.pid" "$dir/docker.sock"
  mkdir -p "$dir"
  nohup setsid dockerd --data-root "$dir/data" --exec-root "$dir/exec" -H "$address" -p "$dir/docker.pid" \
    --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --userland-proxy=false \
    --log-level=warn --shutdown-timeout 2 </dev/null >"$dir/log" 2>&1 &
  for _ in $(seq 150); do
    if answers; then echo "$address"; return; fi
    kill -0 $! 2>/dev/null || break
    sleep 0.2
  done
  stop_daemon
  fail "the engine did not start: $(tail -n 3 "$dir/log" | tr '\n' ' ')"
}

stop_daemon() {
  runs || return 0
  pid=$(cat "$dir/docker.pid")
  kill "$pid" 2>/dev/null || return 0
  for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -9 "$pid"
}

stop() {
  stop_daemon
  { grep -o " $dir/[^ ]*" /proc/self/mounts || true; } | sort -r | while read -r mount; do umount -l "$mount"; done
  [ "${1:-}" = --keep ] || rm -rf "$dir"
}

case ${1:-} in
  start) start "${2:-}" ;;
  stop) stop "${2:-}" ;;
  status) if runs && answers; then echo "$address"; else fail "no engine at $address"; fi ;;
  *) fail "expected start, stop or status, got '${1:-}'" ;;
esac
