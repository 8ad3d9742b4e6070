#!/usr/bin/env bash
# Installs what the tests of real servers need, where it is missing and where this user may.
set -u
missing=()
command -v java >/dev/null || missing+=(default-jre-headless)
command -v mvn >/dev/null || missing+=(maven)
command -v cc >/dev/null || missing+=(gcc libc6-dev)
# A browser that looks at MLflow's pages.
command -v chromedriver >/dev/null || missing+=(chromium chromium-driver)
# A Prometheus (and promtool) that exporters are read from.
command -v prometheus >/dev/null || missing+=(prometheus)
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "missing: ${missing[*]}; install them to run every test, else those tests skip and say why" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"
