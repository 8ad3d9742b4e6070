# shellcheck shell=bash
# What the three scripts beside this one share; read by them, never run. Slurm gives them no PATH.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin:/opt/slurm/bin
# Health checks are not told either where slurm.conf is; where Slurm would not find it by itself:
# export SLURM_CONF=/opt/slurm/etc/slurm.conf
STATE=${TRAINWARDEN_NODE_STATE:-/run/trainwarden-node/state}
MOST_MINUTES=5

# Prints why this node is at fault and succeeds; fails in every doubt: no file, not root's own, old, unreadable, or
# saying anything but CRITICAL of this very node. The file is what `trainwarden check --node` says, of the node by its
# name in Slurm or by that of the host.
node_fault() {
    local node=$1 first=
    [ -f "$STATE" ] && [ ! -L "$STATE" ] && [ -O "$STATE" ] || return 1
    [ -n "$(find "$STATE" -mmin -"$MOST_MINUTES" -size -64k 2>/dev/null)" ] || return 1
    IFS= read -r first <"$STATE" 2>/dev/null || [ -n "$first" ] || return 1
    case $first in
    "CRITICAL: node $node: "* | "CRITICAL: node $(hostname): "*) ;;
    *) return 1 ;;
    esac
    first=${first#CRITICAL: }
    printf 'trainwarden: %s' "${first%% |*}" | tr -cd '[:print:]' | cut -c 1-200
}

# Takes the node out of service for new jobs; one that is out already is let be, with the reason that it has.
drain() {
    local node=$1 why=$2 state
    state=$(timeout 15 scontrol --oneliner show node "$node" 2>/dev/null | grep -o ' State=[^ ]*') || return 1
    case $state in
    *DRAIN* | *DOWN*) return 0 ;;
    esac
    timeout 15 scontrol update NodeName="$node" State=DRAIN Reason="$why" >/dev/null 2>&1
}

# The node's name in Slurm.
node_name() { printf %s "${SLURMD_NODENAME:-$(hostname -s)}"; }
