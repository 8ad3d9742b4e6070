"""Seeded log folders of made-up jobs, each with the truth: prefix x stamp x launcher x root x gap x ranks x noise."""
