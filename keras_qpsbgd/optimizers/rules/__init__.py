"""The update rules of `QPSBGD`.

A rule turns the backward passes of a layer into a problem, and the states that
a solver finds into new latent weights. `gradient` is the rule of the paper, and
`newton` the one for few solves. `momentum` and `hold` work with both.
"""
