"""From votes to a verdict, and from verdicts to one incident per problem.

Read `trainwarden.detectors.verdict.ensemble` first.
"""
