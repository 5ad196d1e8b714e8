"""Trains a network column by column, on one large batch.

`fit` contains the function, and `search` visits the columns. `tail` computes
the loss as a function of the product of one layer, and `narrow` does so faster
if a dense layer follows. `wiring` cuts a model into parts.
"""

from keras_qpsbgd.columns.fit import DAMPINGS as DAMPINGS
from keras_qpsbgd.columns.fit import ColumnHistory as ColumnHistory
from keras_qpsbgd.columns.fit import fit_columns as fit_columns
from keras_qpsbgd.columns.tail import dense_layers as dense_layers
