#!/bin/bash
# Slurm Epilog: after a job, a node that is at fault takes no other. Ends with 0 always: the job is over and did no wrong.
# shellcheck source=fault.sh
. "$(dirname "$0")/fault.sh" 2>/dev/null || exit 0
node=$(node_name)
why=$(node_fault "$node") || exit 0
drain "$node" "$why"
exit 0
