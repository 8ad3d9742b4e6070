"""The command line: one file for each command, named like the command.

Read `trainwarden.cli.main` first: its table says in which file of which room a command lives.

::

    run/      start a training job with the warden beside it: demo, watch, launch
    serve/    one process of the warden, until it is stopped: agent, detector, engine, trainer, archive, up
    ask/      an answer at once, from a bus, a recording or a planner: status, incidents, check, actions, report,
              detect, plan
    learn/    from what was recorded to models: annotate, train, models
    setup/    before a run: doctor, check-config, bench, hook
    shared/   what commands of several rooms use: options, output, the view of a job, its services, its page
"""
