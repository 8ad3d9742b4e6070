"""From votes to a verdict, and from verdicts to one incident per problem.

Read `detectors.verdict.ensemble` first.
"""
