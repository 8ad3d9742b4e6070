"""Commands that answer a question at once, from a bus, a recording or a planner; read `jobs_on_bus` first."""
