#!/usr/bin/env bash
# Record small workloads on a machine with an NVIDIA GPU, and check that the captures open and their paths tile.
# Without a GPU the same is done on the CPU. Needs no network; takes at most six minutes.
# usage: scripts/device_check.sh [WHEELS]
#   WHEELS   folder of the wheels that the machine lacks (.whl); installed beside the rest, nothing is replaced
#   $OUT     where the captures and results.json go (build/device)
#   $PYTHON  which Python (python3)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} wheels=${1:-.whl} out=${OUT:-build/device}
mkdir -p "$out"

if ! "$python" -c 'import importlib.metadata as m; m.version("traceflow-ml")' 2>/dev/null; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
  install=("$python" -m pip install --quiet --no-index --no-deps --no-cache-dir --upgrade --target "$site")
  if compgen -G "$wheels/*.whl" >/dev/null; then "${install[@]}" "$wheels"/*.whl; fi
  "${install[@]}" --no-build-isolation .
fi

"$python" scripts/device_check.py "$out" 2>&1 | tee "$out/log.txt"
