"""The experiment `quantize`: trained networks with few bits per weight.

`tasks.py` has the networks and their data, `methods.py` the methods, `study.py`
the runs, and `page.py` the tables. `train_on_gpu.py` trained the networks of
`cifar10` and `transformer`, whose weights are in `results/quantize/networks`.
"""
