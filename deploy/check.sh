#!/usr/bin/env bash
# Build the images, run the server hardened and the compose stack with Prometheus, look at both from outside, take it all down.
#
# usage: [CUDA=1] [KEEP=1] deploy/check.sh
#   CUDA=1  the image with the CUDA backend (minutes more: PyCUDA and every kernel are compiled); no GPU is needed
#   KEEP=1  keep the images in .build/deploy, so that the next run builds only what changed
#
# Needs root, Debian's packages named below, and nothing of them running: containers, images, networks and volumes live in
# .build/deploy, away from those of the machine; of what it makes, only netavark's empty iptables chains stay. Ports are free ones
# on 127.0.0.1. Every wait is bounded.
set -euo pipefail
cd "$(dirname "$0")/.."

state=$PWD/.build/deploy
base=localhost/debian:bookworm-slim
image=localhost/dnnserve:check
prometheus_image=localhost/dnnserve-prometheus:check
server=dnnserve-check
packages="aardvark-dns buildah catatonit curl iproute2 iptables mmdebstrap netavark podman prometheus python3-venv runc"
passed=0
made=()

say() { printf '%4ds  %s\n' "$SECONDS" "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

check() {  # check WHAT COMMAND...: it must succeed
  local what=$1 output
  shift
  output=$("$@" 2>&1) || fail "$what: $* (exit $?)"$'\n'"$output"
  passed=$((passed + 1))
  # Without systemd there are no health-check timers, which podman says each time that it would have removed one.
  output=$(grep -v 'unable to get systemd connection' <<<"$output") || true
  say "ok    $what${output:+: ${output//$'\n'/ | }}"
}

await() {  # await SECONDS WHAT COMMAND...: it must succeed before long
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || fail "$what, not in time: $*"
    sleep 0.3
  done
  passed=$((passed + 1))
  say "ok    $what"
}

refuses() {  # refuses STATUS TEXT COMMAND...: it must end with the status and say the text
  local status=$1 text=$2 output code=0
  shift 2
  output=$("$@" 2>&1) || code=$?
  printf '%s\n' "$output"
  [[ $code == "$status" && $output == *"$text"* ]] || { echo "wanted exit $status and '$text', got exit $code"; return 1; }
}

free_ports() { python3 -c '
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))' "$1"; }

# ---- an engine of our own ----------------------------------------------------------------------------------------------------

prepare() {
  local folder package tool
  [[ $(id -u) == 0 ]] || fail "must run as root: it makes network namespaces and overlay mounts"
  for tool in buildah podman runc iptables ip mmdebstrap promtool curl python3; do
    command -v "$tool" >/dev/null || fail "$tool is missing; apt-get install --no-install-recommends $packages"
  done
  for package in aardvark-dns catatonit netavark; do
    dpkg -s "$package" >/dev/null 2>&1 || fail "$package is missing; apt-get install --no-install-recommends $packages"
  done
  for folder in /run/containers /var/lib/containers; do
    [[ -e $folder ]] || made+=("$folder")  # podman puts a lock and a cache there, whatever it is told
  done
  mkdir -p "$state"
  # Names and paths are absolute, and podman's own database stays at its default place below graphroot: conmon starts a
  # `podman container cleanup` that knows the graphroot but not this file, and must find the same database.
  cat >"$state/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=16384:16384"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$state/tmp"
[network]
network_config_dir = "$state/networks"
CONF
  cat >"$state/storage.conf" <<CONF
[storage]
driver = "overlay"
graphroot = "$state/graph"
runroot = "$state/run"
CONF
  export CONTAINERS_CONF=$state/containers.conf CONTAINERS_STORAGE_CONF=$state/storage.conf
}

remove() {
  local code=$?
  trap - EXIT
  if ((code != 0)); then
    podman ps -aq 2>/dev/null | while read -r id; do
      printf -- '---- %s\n' "$(podman inspect -f '{{.Name}}: {{.State.Status}}, exit {{.State.ExitCode}}' "$id")"
      podman logs --tail 30 "$id"
    done >&2 || true
  fi
  [[ -n ${load_pid:-} ]] && kill "$load_pid" 2>/dev/null
  [[ -x $state/venv/bin/podman-compose ]] && compose down --volumes --timeout 45 >/dev/null 2>&1
  podman rm --all --force --time 5 >/dev/null 2>&1
  if [[ ${KEEP:-0} != 1 ]]; then
    awk -v prefix="$state/" 'index($2, prefix) == 1 { print $2 }' /proc/mounts | sort -r | while read -r mount; do
      umount "$mount"
    done
    rm -rf --one-file-system "$state" "${made[@]}"
  fi
  exit "$code"
}

# ---- images ------------------------------------------------------------------------------------------------------------------

build() {  # build TAG CONTAINERFILE CONTEXT [OPTION...]
  local tag=$1 file=$2 context=$3 log=$state/build.log
  shift 3
  buildah build --isolation chroot --network host --format docker --layers --build-arg "BASE_IMAGE=$base" \
    --secret id=ca_bundle,src=/etc/ssl/certs/ca-certificates.crt "$@" -t "$tag" -f "$file" "$context" >"$log" 2>&1 ||
    { tail -40 "$log" >&2; fail "$tag could not be built"; }
  passed=$((passed + 1))
  say "ok    built $tag: $(podman image inspect -f '{{.Size}}' "$tag" | awk '{printf "%.0f MB", $1 / 1e6}')"
}

build_base() {
  podman image exists "$base" && return
  mmdebstrap --quiet --variant=minbase --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    bookworm "$state/base.tar" >"$state/base.log" 2>&1 || { cat "$state/base.log" >&2; fail "the base image could not be made"; }
  podman import --quiet "$state/base.tar" "$base" >/dev/null
  rm "$state/base.tar"
  say "ok    made $base"
}

tool() { podman run --rm --no-healthcheck --log-driver none -v "$state/work:/scratch" --entrypoint "$1" "${@:2}"; }

make_model() {  # an untrained LeNet and an image for it
  mkdir -p "$state/work/models"
  tool python3 --network none --user 0 -i "$image" - <<'PYTHON'
from PIL import Image

from dnncore.nn import Package
from dnncore.nn.zoo import lenet
from dnncore.preprocessing import Preprocessing

net = lenet()
preprocessing = Preprocessing.squash("gray", 8, 8, 1 / 255, (0.0,), (1.0,))
Package("digits", net, net.initialize(0), preprocessing, tuple("0123456789")).save("/scratch/models/digits/1")
Image.effect_noise((8, 8), 64).save("/scratch/digit.png")
PYTHON
}

# ---- the server alone, as tightly as it should be run ------------------------------------------------------------------------

metrics_page() { curl --silent --show-error --fail --max-time 5 "http://127.0.0.1:$1/metrics"; }

lint_metrics() {  # The nv_* names are Triton's, which promtool's taste (a counter ends in _total) does not know.
  metrics_page "$1" >"$state/metrics.txt"
  grep -v nv_inference "$state/metrics.txt" | promtool check metrics
  grep -c . "$state/metrics.txt" | sed 's/$/ lines/'
}

classify() { tool dnnclient --network host "$image" classify --server "127.0.0.1:$1" --model digits --top-k 3 /scratch/digit.png; }

load() { tool dnnclient --network host "$image" load --server "127.0.0.1:$1" --model digits --synthetic "${@:2}"; }

stop() {  # stop NAME: SIGTERM must be enough, and end in 0
  podman stop --time 45 "$1"
  [[ $(podman inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$1") == "exited 0" ]] || { podman logs --tail 20 "$1"; return 1; }
}

run_hardened() {
  local grpc metrics no_gpu="PyCUDA is not installed"
  read -r grpc metrics < <(free_ports 2)
  local hardened=(--read-only --cap-drop all --security-opt no-new-privileges --memory 512m --cpus 1 --pids-limit 256)
  local once=(podman run --rm --no-healthcheck --network none "${hardened[@]}" -v "$state/work/models:/models:ro")
  [[ ${CUDA:-0} == 1 ]] && no_gpu="no NVIDIA driver"

  check "a missing model repository is told" refuses 2 "is not a folder" "${once[@]}" "$image" --model-repository /nowhere
  check "a GPU that is not there is told" refuses 2 "$no_gpu" "${once[@]}" "$image" --model-repository /models --devices cuda:0
  podman run --detach --name "$server" "${hardened[@]}" -v "$state/work/models:/models:ro" \
    -p "127.0.0.1:$grpc:8001" -p "127.0.0.1:$metrics:8002" "$image" >"$state/run.log" 2>&1 || fail "podman run: $(cat "$state/run.log")"
  await 60 "ready" curl --silent --fail --max-time 2 "http://127.0.0.1:$metrics/readyz"
  check "HEALTHCHECK says healthy" podman healthcheck run "$server"
  check "runs as a plain user" podman exec "$server" id
  check "its root cannot be written" refuses 1 "Read-only file system" podman exec "$server" touch /opt/dnnserve/x
  check "there is no compiler and no pip" podman exec "$server" sh -c '! command -v gcc g++ cc nvcc ptxas pip'
  check "there is no driver of our own" podman exec "$server" sh -c '! find / -xdev -name "libcuda.so*" 2>/dev/null | grep .'
  [[ ${CUDA:-0} != 1 ]] ||
    check "kernels are compiled" podman exec "$server" sh -c 'ls /opt/dnnserve/lib/python3*/site-packages/dnncore/cuda/cubins/*.cubin | wc -l'
  check "classifies" classify "$grpc"
  check "serves under load" load "$grpc" --requests 500
  check "/metrics is clean" lint_metrics "$metrics"
  check "requests are counted" grep 'dnnserve_requests_total{method="Classify",.*status="OK".*} 501.0' "$state/metrics.txt"
  check "SIGTERM drains and ends in 0" stop "$server"
  podman rm "$server" >/dev/null 2>&1
}

# ---- the compose stack -------------------------------------------------------------------------------------------------------

compose() { "$state/venv/bin/podman-compose" -p dnnserve-check -f deploy/compose.yaml "$@"; }

query() {  # query EXPRESSION: Prometheus must find something
  local found
  found=$(promtool query instant "http://127.0.0.1:$PROMETHEUS_PORT" "$1")
  printf '%s\n' "$found"
  [[ -n $found ]]
}

stop_service() {  # stop_service NAME: its stop_grace_period must be enough, and it must end in 0
  local container
  container=$(podman ps --quiet --filter "label=com.docker.compose.service=$1")
  compose stop "$1" 2>&1 | tail -5
  podman inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$container" | grep -x "exited 0"
}

run_compose() {
  local series
  read -r GRPC_PORT METRICS_PORT PROMETHEUS_PORT < <(free_ports 3)
  export GRPC_PORT METRICS_PORT PROMETHEUS_PORT MODEL_REPOSITORY=$state/work/models
  export DNNSERVE_IMAGE=$image PROMETHEUS_IMAGE=$prometheus_image
  if [[ ! -x $state/venv/bin/podman-compose ]]; then
    python3 -m venv "$state/venv"
    "$state/venv/bin/pip" install --quiet podman-compose==1.6.0 2>"$state/pip.log" || fail "$(cat "$state/pip.log")"
  fi
  compose up --detach --no-build >"$state/compose.log" 2>&1 || fail "compose up: $(tail -20 "$state/compose.log")"
  await 60 "compose: the server is ready" curl --silent --fail --max-time 2 "http://127.0.0.1:$METRICS_PORT/readyz"
  await 60 "compose: Prometheus is ready" curl --silent --fail --max-time 2 "http://127.0.0.1:$PROMETHEUS_PORT/-/ready"
  # Long enough for a rate: two scrapes at least, while the counters move.
  load "$GRPC_PORT" --rate 20 --duration 30 >"$state/load.log" 2>&1 &
  load_pid=$!
  await 60 "Prometheus scrapes the server" query 'up{job="dnnserve"} == 1'
  wait "$load_pid" || fail "load: $(cat "$state/load.log")"
  load_pid=
  await 30 "Prometheus has its counters" query 'dnnserve_requests_total{status="OK"} >= 600'
  for series in $(sed -n 's/.*- record: //p' deploy/prometheus/rules.yml); do
    await 30 "rule $series has a value" query "$series"
    query "$series" | sed 's/^/            /'
  done
  check "no rule fails to evaluate" query 'sum(prometheus_rule_evaluation_failures_total) == 0'
  check "no alert is up" query 'absent(ALERTS)'
  check "compose: the server stops in order" stop_service dnnserve
  await 60 "DnnserveDown is pending" query 'ALERTS{alertname="DnnserveDown"}'
  check "compose: down" compose down --volumes --timeout 45
}

trap remove EXIT
trap 'exit 130' INT TERM
prepare
build_base
build "$image" deploy/Containerfile . --build-arg "CUDA=${CUDA:-0}"
build "$prometheus_image" deploy/prometheus/Containerfile deploy/prometheus
make_model
run_hardened
run_compose
say "$passed passed, 0 failed"
