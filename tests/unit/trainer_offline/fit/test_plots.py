"""Pictures of a test: what is drawn, and that there is room for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainwarden.trainer_offline.fit.judge import Quality, Tally
from trainwarden.trainer_offline.fit.plots import draw

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]  # of scikit-learn's and matplotlib's own


@pytest.mark.parametrize("jobs", [1, 8])
def test_everything_on_a_picture_lies_within_it(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Margins have a fixed size: numbers, labels and titles must find room in them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn: list[Figure] = []

    def keep(figure: Figure, *arguments: object, **options: object) -> None:
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    rng = np.random.default_rng(0)
    times_s = 1.8e9 + 10.0 * np.arange(500)
    lines = [(f"job-{one}" * 20, times_s, rng.random(500), rng.random(500) > 0.9) for one in range(jobs)]
    tally = Tally(
        Quality(injected=True), quiet_scores=[rng.random(20_000) ** 6], event_scores=[1.0 - rng.random(50) ** 6],
        lines=lines,
    )  # fmt: skip
    assert len(draw("neighbor_profile", tally, tmp_path)) == len(drawn) == 3
    for figure in drawn:
        renderer = FigureCanvasAgg(figure).get_renderer()
        width, height = figure.get_size_inches() * figure.dpi
        for axes in figure.axes:
            box = axes.get_tightbbox(renderer)
            assert box.x0 >= 0.0
            assert box.y0 >= 0.0
            assert box.x1 <= width
            assert box.y1 <= height
            for other in figure.axes:
                below, above = axes.get_tightbbox(renderer), other.get_tightbbox(renderer)
                assert other is axes or below.y1 <= above.y0 or above.y1 <= below.y0
