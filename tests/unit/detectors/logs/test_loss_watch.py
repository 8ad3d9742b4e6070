"""What trainers print of loss and gradient norm: read, and told when it is not finite or far above what it was."""

from __future__ import annotations

import gzip
from dataclasses import replace

import numpy as np
import pytest

from tests.places import shared_data
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import LogLine
from trainwarden.detectors.logs import loss_watch
from trainwarden.detectors.logs.loss_lines import printed
from trainwarden.detectors.logs.loss_watch import LossWatch

EMPTY = JobState("job").window(now_s=0.0)
RNG = np.random.default_rng(0)
NORMAL = [4.0 - 0.002 * step + 0.03 * noise for step, noise in enumerate(RNG.normal(size=400))]


def shown(lines, *, detector=None, source="rank-0.log", first=0):
    """The votes of a detector that reads one line a second."""
    detector, votes = detector or LossWatch(LossWatch.Config()), []
    for place, line in enumerate(lines, first):
        window = replace(EMPTY, now_s=float(place), logs=(LogLine("n0", source, None, line, float(place)),))
        detector.update(window)
        votes.append(detector.score(window))
    return votes


def losses(values, norms=()):
    lines = [f"iteration {step}/ 900 | lm loss: {value:.6E} | loss scale: 1.0 |" for step, value in enumerate(values)]
    return [f"{line} grad norm: {norm:.3f} |" for line, norm in zip(lines, norms, strict=True)] if norms else lines


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step: 10  loss:  8.1234  grad_norm:  1.2345  memory: 2GiB", [("loss", 8.1234), ("gradient norm", 1.2345)]),
        ("\x1b[31mstep: 10 \x1b[32m loss: 8.1 \x1b[0m", [("loss", 8.1)]),
        ("iter 100: loss 2.3456, time 135.01ms", [("loss", 2.3456)]),
        ("Epoch 1, train_loss=-0.5,gnorm=3e-2", [("loss", -0.5), ("gradient norm", 0.03)]),
        ("{'loss': 'inf'}", [("loss", float("inf"))]),
        ("training loss: -inf", [("loss", float("-inf"))]),
        ("val_loss: 3.1 eval loss: 3.2 aux_loss: 0.1 load_balancing_loss: 1.0 test/loss 0.2", []),
        ("loss scale: 65536.0 loss_fn: 3", []),
        ("lossy 3.0, gloss 4, packet loss 3.0%", []),
        ("| reduced_train_loss: 3.1 | grad/norm=0.5", [("loss", 3.1), ("gradient norm", 0.5)]),
        ("\t Train loss/train/total: 2.5", [("loss", 2.5)]),
        ("    train/CrossEntropyLoss=2.5", [("loss", 2.5)]),
        ("    train/CE loss=2.5", [("loss", 2.5)]),
        (", train_loss_step=2.5, train_loss_epoch=2.7]", [("loss", 2.5)]),
        ('"key": "train_loss", "value": 2.5, "metadata"', [("loss", 2.5)]),
        ("loss=tensor(2.5, device='cuda:0') lm_loss: 2.7", [("loss", 2.5)]),
        ("perplexity: 12.1 ppl=12 nll: 2.5", []),
        ("kl_loss: 0.1 router/loss=2 no loss: 3 best loss: 1.0", []),
        ("loss: " + "9" * 3000, []),
        ("loss: 0x1f", []),
        ("", []),
    ],
)
def test_what_is_read_of_a_line(line, found):
    assert printed(line) == found


def test_a_loss_that_is_no_number_is_told_with_the_second_and_accuses_nobody():
    votes = shown(losses([*NORMAL[:40], *[float("nan")] * 5]))
    assert [vote.opinion for vote in votes[39:43]] == ["normal", "normal", "anomalous", "anomalous"]
    vote = votes[-1]
    assert (vote.kind, vote.severity, vote.suspects, vote.verified) == ("silent_corruption", "sev2", (), True)
    assert vote.onset_s == 40.0
    assert "validate" in vote.reason
    assert vote.metrics == ("loss",)
    assert shown(losses([float("inf")] * 2))[-1].opinion == "anomalous"  # also from the first


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 0:   1%|1 | 13/1000 [00:23<01:14,  5.07it/s, v_num=0, train_loss=nan.0]",
        "Epoch 0:   1%|1 | 13/1000 [00:23<01:14,  5.07it/s, train_loss_step=nan.0, train_loss_epoch=2.310]",
        "| global_step: 12 | reduced_train_loss: nan | train_step_timing in s: 2.3",
        "\t Train loss/train/total: nan",
        "    train/CE loss=nan",
        ':::MLLOG {"key": "train_loss", "value": NaN, "metadata": {"samples_count": 512}}',
        "{'loss': 'nan', 'grad_norm': 'nan', 'learning_rate': '1e-05'}",
        "12/1000 [==>....] - ETA: 10:11 - loss: nan - accuracy: 0.0000e+00",
        "1|12|Loss: nan:   2%|# | 12/500 [00:20<10:40,  1.30s/it]",
        "step 12: train/perplexity=nan",
        "[09/21 08:00:01 d2.utils.events]:  iter: 19  total_loss: nan  time: 0.3100",
    ],
)
def test_a_loss_that_is_no_number_is_told_under_any_trainers_name(line):
    assert shown([line] * 2)[-1].opinion == "anomalous"


def test_steps_that_mixed_precision_skips_are_no_fault():
    norms = [1.0] * 40 + [float("inf")] * 12 + [1.0] * 3 + [float("nan")] + [1.0] * 4
    assert "anomalous" not in {vote.opinion for vote in shown(losses(NORMAL[:60], norms))}
    norms = [1.0] * 40 + [float("inf")] * 20
    assert shown(losses(NORMAL[:60], norms))[-1].metrics == ("gradient_norm",)


def test_a_spike_that_stays_is_told_and_one_that_goes_is_not():
    short = [*NORMAL[:100], *[9.0] * 4, *NORMAL[100:150]]
    assert "anomalous" not in {vote.opinion for vote in shown(losses(short))}
    votes = shown(losses([*NORMAL[:100], *[9.0] * 6, *NORMAL[100:150]]))
    assert [place for place, vote in enumerate(votes) if vote.opinion == "anomalous"] == [104, 105]
    assert "spikes at 9 from 3.8" in votes[104].reason
    assert votes[104].severity == "sev3"


def test_a_loss_that_falls_or_wanders_is_normal():
    for values in (
        NORMAL,
        [12.0 * 0.99**step for step in range(400)],
        [1.0 + 0.1 * one for one in RNG.normal(size=400)],
    ):
        assert "anomalous" not in {vote.opinion for vote in shown(losses(values))}


def test_another_level_is_the_level_after_a_while():
    votes = shown(losses([*NORMAL[:100], *[9.0] * 240]))
    assert votes[250].opinion == "anomalous"
    assert votes[-1].opinion == "normal"


def test_who_prints_it_is_counted():
    detector = LossWatch(LossWatch.Config())
    shown(losses(NORMAL[:40]), detector=detector, source="rank-1.log")
    vote = shown(losses([*NORMAL[:40], *[float("nan")] * 3]), detector=detector)[-1]
    assert "in 1 of 2 sources that print it" in vote.reason


def test_a_job_that_goes_on_elsewhere_after_a_restart_has_left_its_loss_behind():
    detector = LossWatch(LossWatch.Config())
    assert shown(losses([*NORMAL[:40], float("nan"), float("nan")]), detector=detector)[-1].opinion == "anomalous"
    for value, opinion in (("2.5", "normal"), ("nan", "normal"), ("nan", "anomalous")):
        kept, detector = detector.state(), LossWatch(LossWatch.Config())
        detector.restore(kept)
        line = LogLine("n1", "rank-0.log", None, f"loss: {value}", 50.0)
        detector.update(replace(EMPTY, now_s=50.0, logs=(line,), restarts=1))
        assert detector.score(EMPTY).opinion == opinion


def test_no_more_sources_are_followed_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(loss_watch, "MAX_SERIES", 2)
    detector = LossWatch(LossWatch.Config())
    for number in range(3):
        shown(losses([2.0]), detector=detector, source=f"rank-{number}.log")
    assert shown(losses([float("nan")] * 3), detector=detector, source="rank-2.log")[-1].opinion == "normal"
    assert shown(losses([float("nan")] * 3), detector=detector, source="rank-1.log")[-1].opinion == "anomalous"


def test_cut_anywhere_it_goes_on():
    lines = losses([*NORMAL[:50], *[float("nan")] * 3, *NORMAL[50:60], *[9.0] * 8])
    whole = shown(lines)
    for cut in (1, 49, 51, 52, 55, 66, 70):
        before = LossWatch(LossWatch.Config())
        shown(lines[:cut], detector=before)
        after = LossWatch(LossWatch.Config())
        after.restore(before.state())
        assert shown(lines[cut:], detector=after, first=cut) == whole[cut:]


@pytest.mark.thorough
def test_logs_of_real_jobs_hold_nothing():
    data = shared_data()
    if data is None:
        pytest.skip("no shared data")
    files = sorted((data / "bigscience_train_logs").glob("*.gz")) + sorted((data / "smc_train_log").glob("*.gz"))
    for file in files:
        lines = gzip.decompress(file.read_bytes()).decode(errors="replace").splitlines()
        told = [line for line in lines if printed(line)]
        assert "anomalous" not in {vote.opinion for vote in shown(told)}, file.name
