"""The QUBO of a layer: as a value (`qubo`), and its formulas (`ops`)."""

from keras_qpsbgd.qubo.qubo import Qubo as Qubo
