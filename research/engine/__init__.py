"""Compares methods for training a binary network.

A method, a task, a plan of runs on the same seeds, a trainer, records, tables
with paired tests, and figures. The experiments of the paper and
`python -m research compare` use it.
"""
