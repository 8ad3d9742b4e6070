"""Commands that start a training job with the warden beside it; read `job_run` first: demo, watch and launch use it."""
