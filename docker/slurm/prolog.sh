#!/bin/bash
# Slurm Prolog: a job does not begin on a node that is at fault. Ends with 0 in every doubt.
# With a fault it ends with 1: Slurm drains the node and queues the job again (held, unless SchedulerParameters has
# nohold_on_prolog_fail). The reason is told first, so that it is ours and not "Prolog error".
# shellcheck source=fault.sh
. "$(dirname "$0")/fault.sh" 2>/dev/null || exit 0
node=$(node_name)
why=$(node_fault "$node") || exit 0
drain "$node" "$why"
echo "$why" >&2
exit 1
