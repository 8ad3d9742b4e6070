#!/usr/bin/env bash
# Installs what the tests of real servers need, where it is missing and where this user may; with `all` also what
# make image and make kubernetes need.
set -u
missing=()
command -v java >/dev/null || missing+=(default-jre-headless)
command -v mvn >/dev/null || missing+=(maven)
command -v cc >/dev/null || missing+=(gcc libc6-dev)
# A browser that looks at MLflow's pages.
command -v chromedriver >/dev/null || missing+=(chromium chromium-driver)
# What exporters are read from, checks our rules and the configurations that docker/ ships; what alerts fire in; what
# checks its scripts.
command -v promtool >/dev/null || missing+=(prometheus)
command -v prometheus-alertmanager >/dev/null || missing+=(prometheus-alertmanager)
command -v shellcheck >/dev/null || missing+=(shellcheck)
# Nodes of the testbed: their cables and what these carry.
command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)
# A scheduler whose nodes are drained.
command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null ||
    missing+=(slurmctld slurmd slurm-client)
if [ "${1:-}" = all ]; then
    # For make kubernetes: what an API server keeps its objects in, and what speaks to it.
    command -v etcd >/dev/null || missing+=(etcd-server)
    command -v kubectl >/dev/null || missing+=(kubernetes-client)
    # For make image: a builder of images that needs no engine, and a base where no registry of images is at hand.
    command -v buildah >/dev/null || missing+=(buildah)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
fi
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "missing: ${missing[*]}; install them to run every test, else those tests skip and say why" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# Nothing that is installed here is started: the tests start what they need themselves.
export RUNLEVEL=1
apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"
