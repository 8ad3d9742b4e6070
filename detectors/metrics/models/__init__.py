"""Models of normal behaviour as pure array code: fit on normal rows, score without side effects, state as plain arrays.

Read `trainwarden.detectors.metrics.models.rows` first.

Row models (`lof`, `pca`, `kmeans`, `nearest`, `zlength`) score ``rows [r, d]``; window models (`forecast`,
`neighbor_profile`, `dtw`) score ``windows [r, d, m]``, newest sample last. All take prepared values
(`bundle.preparation`): one unit is one normal spread, NaN is missing. `bundle.calibration` brings every raw score to
0..1 and `bundle.metric_vote` is the ensemble of them.
"""
