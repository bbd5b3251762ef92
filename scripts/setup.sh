#!/usr/bin/env bash
# The Python environment of this checkout: uv where there is none, the locked packages, Leyden itself.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${LEYDEN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leyden}"
venv="${LEYDEN_VENV:-.venv}"
lock="${LEYDEN_LOCK:-requirements/cpu.lock}"

say() { echo "leyden: $*" >&2; }

# A line now and then from a command that says nothing for minutes.
with_heartbeat() {
    local what="$1" began=$SECONDS
    shift
    say "$what ..."
    "$@" &
    local job=$!
    # The command must not outlive an interrupted make.
    trap 'kill "$job" 2>/dev/null || true' EXIT
    while kill -0 "$job" 2>/dev/null; do
        sleep 1
        (((SECONDS - began) % 15)) || say "$what ... $((SECONDS - began)) s, $(du -sh "$venv" 2>/dev/null | cut -f1) so far"
    done
    trap - EXIT
    wait "$job"
    say "$what: done in $((SECONDS - began)) s"
}

find_uv() {
    if command -v uv >/dev/null; then
        echo uv
    elif [ -x "$cache/uv/bin/uv" ]; then
        echo "$cache/uv/bin/uv"
    else
        command -v python3 >/dev/null || { say "Python 3.11 or newer is missing: apt-get install python3 python3-venv"; exit 2; }
        say "uv is missing: installing it into $cache/uv"
        python3 -m venv "$cache/uv" || { say "venv is missing: apt-get install python3-venv"; exit 2; }
        "$cache/uv/bin/pip" install --quiet uv
        echo "$cache/uv/bin/uv"
    fi
}

mkdir -p "$cache"
uv="$(find_uv)"
export VIRTUAL_ENV="$PWD/$venv"
case "$venv" in /*) VIRTUAL_ENV="$venv" ;; esac

# Two makes of one checkout take turns.
exec 9>"$cache/setup-$(pwd | cksum | cut -d' ' -f1).lock"
flock 9

if [ ! -x "$venv/bin/python" ]; then
    "$uv" venv --quiet --python '>=3.11,<3.14' "$venv"
fi
digest="$(sha256sum "$lock" | cut -d' ' -f1)"
if [ "$(cat "$venv/lock.sha256" 2>/dev/null)" != "$digest" ]; then
    with_heartbeat "Python packages (6 GB, 5 minutes where none is cached)" "$uv" pip sync --quiet --require-hashes "$lock"
    echo "$digest" >"$venv/lock.sha256"
fi
# A strict editable install is a folder of links: files that were added since need a new one.
"$uv" pip install --quiet --no-deps -e . --config-settings editable_mode=strict
