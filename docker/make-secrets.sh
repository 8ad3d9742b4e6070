#!/usr/bin/env bash
# Makes what compose.yaml hands out as secrets, in a folder that this user alone may enter; what is there stays.
# The files themselves may be read by all: containers read them as users of their own.
set -euo pipefail
folder=${1:-$(dirname "$0")/secrets}
umask 077
mkdir -p "$folder"
chmod 700 "$folder"

secret() { head -c 32 /dev/urandom | base64 | tr -d '+/=\n'; }
keep() { # NAME, content on standard input
    cat >"$folder/$1.part"
    chmod 644 "$folder/$1.part"
    mv "$folder/$1.part" "$folder/$1"
}
digest() { printf %s "$1" | sha256sum | cut -d ' ' -f 1; }

[ -e "$folder/grafana_password" ] || secret | keep grafana_password
[ -e "$folder/rendezvous_token" ] || secret | keep rendezvous_token
[ -e "$folder/alertmanager_token" ] || secret | keep alertmanager_token
if [ ! -e "$folder/tokens" ]; then
    # Tokens are kept as digests: whoever reads the file learns none.
    person=$(secret)
    printf '# NAME ROLE TOKEN\nalertmanager act sha256:%s\non-call act sha256:%s\n' \
        "$(digest "$(cat "$folder/alertmanager_token")")" "$(digest "$person")" | keep tokens
    echo "token of 'on-call' for the page and the API (it is kept nowhere): $person"
fi
echo "password of Grafana's user admin: $folder/grafana_password"
