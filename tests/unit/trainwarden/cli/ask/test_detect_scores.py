"""The file of scores: jobs with different columns stay in their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trainwarden.cli.ask.detect_scores import ScoresFile
from trainwarden.errors import ConfigError

ALONE = {"time_s": np.array([0.0, 1.0]), "training": np.array([1, 0]), "pca": np.array([0.1, 0.2]),
         "ensemble": np.array([0.3, 0.4])}  # fmt: skip
PEERS = {"time_s": np.array([5.0]), "training": np.array([0]), "node": np.array(["n0"]), "dtw": np.array([0.7]),
         "pca": np.array([0.8]), "ensemble": np.array([0.9])}  # fmt: skip


@pytest.mark.parametrize("name", ["scores.csv", "scores.csv.gz", "scores.parquet"])
@pytest.mark.parametrize("order", [(("alone", ALONE), ("peers", PEERS)), (("peers", PEERS), ("alone", ALONE))])
def test_each_value_stands_under_its_own_name(name: str, order: tuple, tmp_path: Path) -> None:
    file = ScoresFile.open(tmp_path / name)
    for job, columns in order:
        file.add(job, columns)
    file.close()
    frame = (pd.read_parquet if name.endswith("parquet") else pd.read_csv)(tmp_path / name).set_index("job")
    assert list(frame.columns[-1:]) == ["ensemble"]
    assert frame.loc["peers", ["time_s", "node", "dtw", "pca", "ensemble"]].tolist() == [5.0, "n0", 0.7, 0.8, 0.9]
    assert frame.loc["alone", "ensemble"].tolist() == [0.3, 0.4]
    assert frame.loc["alone", ["dtw", "node"]].isna().all(axis=None)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_without_a_row_there_is_a_file_with_the_least_columns(tmp_path: Path) -> None:
    file = ScoresFile.open(tmp_path / "scores.csv")
    file.close()
    assert list(pd.read_csv(tmp_path / "scores.csv").columns) == ["job", "time_s", "training", "ensemble"]


def test_a_folder_that_is_not_there_is_said_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        ScoresFile.open(tmp_path / "nowhere" / "scores.csv")
