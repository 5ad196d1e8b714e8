"""Plans the runs of the experiments from the options."""

from keras_qpsbgd.compare import methods
from keras_qpsbgd.compare.plan import FIRST_TUNING_SEED
from keras_qpsbgd.compare.plan import Item

MAX_SEEDS = 800  # some tasks start at 200; tuning seeds start at 1,000
QUICK_SEEDS = 2
QUICK_CONFIGURATIONS = 2


def items(tasks, options, folder):
    """Returns the items of tasks, in the order of the tables.

    Args:
        tasks: list of `Task`.
        options: `Options`.
        folder: folder of the experiment's records.

    Returns:
        List of `Item`.
    """
    return [
        _item(task, key, options, folder)
        for task in tasks
        for key in methods.METHODS
        if key in options.methods and key in task.methods
    ]


def _item(task, key, options, folder):
    method = options.method(key)
    like = None
    if task.like or method.like:
        other = method.like or key
        like = _item(task.like or task, other, options, folder)
    return Item(
        task=task,
        method=method,
        folder=folder,
        grid=_grid(task, method.like or key, options),
        tuning_seeds=_tuning_seeds(task, options),
        fresh_seeds=_fresh_seeds(task, key, options),
        like=like,
        data_dir=options.data_dir,
    )


def _grid(task, key, options):
    found = task.grids.get(key, [])  # empty if `task.like` is set
    if options.quick and not task.ablation:
        middle = max(len(found) - QUICK_CONFIGURATIONS, 0) // 2
        return found[middle : middle + QUICK_CONFIGURATIONS]
    return found


def _tuning_seeds(task, options):
    count = 1 if options.quick else task.tuning_seeds
    return range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + count)


def _fresh_seeds(task, key, options):
    count = _num_fresh_seeds(task, key, options)
    return range(task.first_seed, task.first_seed + count)


def _num_fresh_seeds(task, key, options):
    if options.seeds is not None:
        return options.seeds
    if options.quick:
        return 1 if task.ablation else QUICK_SEEDS
    if options.paper:
        return 6 if task.ablation else 5
    if key in methods.HOST:
        return task.host_seeds
    return task.fresh_seeds
