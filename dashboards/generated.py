"""Files that are built from code and kept beside it, so that installing them needs no Python.

``python -m trainwarden.dashboards.generated --write`` (``make dashboards``) writes them; a test holds that they are of
today. Needs PyYAML and, for Grafana, its foundation SDK: both come with the extra ``dev``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import yaml

from trainwarden.dashboards.alerts.alert import RUNBOOKS
from trainwarden.dashboards.alerts.prometheus import rules
from trainwarden.dashboards.grafana_code import provisioning
from trainwarden.dashboards.grafana_code.fleet import fleet
from trainwarden.dashboards.grafana_code.incident import incident
from trainwarden.dashboards.grafana_code.job import job
from trainwarden.dashboards.grafana_code.node import node
from trainwarden.dashboards.grafana_code.own import own

FOLDER: Final = Path(__file__).parent
HEADER: Final = "# Built by `make dashboards` from dashboards/; edit that.\n"


def generated(runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Text of every built file by its path in `dashboards/`."""
    boards = {"fleet": fleet, "job": job, "incident": incident, "node": node, "self": own}
    return {
        "prometheus/trainwarden.rules.yml": _yaml(rules(runbooks)),
        **{f"grafana/{name}.json": build() for name, build in boards.items()},
        "provisioning/datasources/trainwarden.yml": _yaml(provisioning.datasources()),
        "provisioning/dashboards/trainwarden.yml": _yaml(provisioning.providers()),
        "provisioning/alerting/rules.yml": _yaml(provisioning.rules(runbooks)),
        "provisioning/alerting/contact_points.yml": _yaml(provisioning.contact_points()),
        "provisioning/alerting/policies.yml": _yaml(provisioning.policies()),
    }


def _yaml(content: Any) -> str:
    return HEADER + str(yaml.safe_dump(content, sort_keys=False, width=1_000, allow_unicode=True))


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 if a file is not of today and may not be written."""
    parser = argparse.ArgumentParser(prog="python -m trainwarden.dashboards.generated", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files; else only say which are not of today")
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder to write to")
    parser.add_argument("--runbooks", default=RUNBOOKS, help="address that runbook pages lie under, e.g. of a wiki")
    asked = parser.parse_args(arguments)
    old = []
    for name, text in generated(asked.runbooks).items():
        path = asked.to / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        old.append(name)
        if asked.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print("\n".join(old) or "all of today")  # noqa: T201
    return 1 if old and not asked.write else 0


if __name__ == "__main__":
    raise SystemExit(main())
