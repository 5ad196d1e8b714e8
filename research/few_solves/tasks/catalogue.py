"""All tasks by name."""

from research.few_solves.tasks import adult
from research.few_solves.tasks import cora
from research.few_solves.tasks import mnist
from research.few_solves.tasks import small

TASKS = {
    task.name: task
    for task in (
        *small.TASKS,
        *adult.TASKS,
        *cora.TASKS,
        *mnist.TASKS,
    )
}
