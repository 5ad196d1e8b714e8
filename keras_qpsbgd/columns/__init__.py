"""Trains a network column by column, on one large batch.

`fit` defines `fit_columns`, and `visitor` solves the QUBOs of single columns.
`tail` computes the loss as a function of the product of one layer, and `wiring`
splits a model into parts.
"""

from keras_qpsbgd.columns.fit import DAMPINGS as DAMPINGS
from keras_qpsbgd.columns.fit import ColumnHistory as ColumnHistory
from keras_qpsbgd.columns.fit import fit_columns as fit_columns
from keras_qpsbgd.columns.wiring import dense_layers as dense_layers
