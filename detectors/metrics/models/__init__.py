"""Models of normal behaviour as pure array code: fit on normal rows, score without side effects, state as plain arrays.

Row models (`lof`, `pca`, `kmeans`, `nearest`, `zlength`) score ``rows [r, d]``; window models (`neighbor_profile`,
`dtw`) score ``windows [r, d, m]``, newest sample last. All take prepared values (`preparation`): one unit is one normal
spread, NaN is missing. `calibration` brings every raw score to 0..1 and `vote` is the ensemble of them.
"""
