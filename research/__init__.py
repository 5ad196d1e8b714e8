"""Experiments and benchmarks of the library. They are not installed with it.

    python -m research reproduce    reproduce the experiments of the paper
    python -m research compare      compare methods on your own data
    python -m research bench        measure speed and solvers
    python -m research quantize     compare methods that quantize networks
    python -m research gaps         measure what raises spectral gaps
    python -m research pictures     draw pictures of the documentation

Run the commands in a clone of the repository, with the packages of the extra
`research` installed.
"""
