"""The default backend: exact where that is cheap, local search elsewhere."""

import dataclasses

from keras_qpsbgd.backends import exact
from keras_qpsbgd.backends import local_search
from keras_qpsbgd.backends import sweeps
from keras_qpsbgd.backends.backend import GraphBackend

ENUMERATE_UP_TO = 16
# Above this many entries, one flip per step is too slow and sweeps take over.
SWEEP_FROM = 50_000


@dataclasses.dataclass(frozen=True)
class _Preset:
    steps: float  # flips per lane, in units of n; 0 is plain descent
    restarts: int
    sweeps: int


# Compared on other instances than those of benchmarks/solvers.py; see there.
PRESETS = {
    "fast": _Preset(steps=0, restarts=1, sweeps=1),
    "balanced": _Preset(steps=1.25, restarts=1, sweeps=2),
    "accurate": _Preset(steps=10, restarts=4, sweeps=8),
}
# Where a step costs little, `accurate` can afford more of them.
ACCURATE_STEPS_UP_TO_64 = 20


class NativeBackend(GraphBackend):
    """Solves inside the training graph; no package, no licence, no token.

    - up to 16 inputs: exact, by enumeration;
    - above: 1-opt tabu search from sign(-s);
    - wide layers (rows kept, or more than 50,000 weights): sweeps from zero.

    Args:
        preset: `"fast"` (descent, 1 sweep), `"balanced"` (tabu, 1.25n
            steps; 2 sweeps) or `"accurate"` (tabu, 10n steps and 4 restarts,
            20n up to 64 inputs; 8 sweeps).
    """

    name = "native"

    def __init__(self, preset="balanced"):
        if preset not in PRESETS:
            raise ValueError(
                f"`preset` must be one of {sorted(PRESETS)}. "
                f"Received: preset={preset!r}"
            )
        self.preset = preset

    def search(self, problem, seed):
        preset = PRESETS[self.preset]
        n, m = problem.fields.shape
        if n <= ENUMERATE_UP_TO:
            return exact.enumerate_states(problem)
        if problem.couplings is None or n * m > SWEEP_FROM:
            return sweeps.cyclic_sweeps(problem, seed, preset.sweeps)
        if preset.steps == 0:
            return local_search.greedy(problem, seed)
        steps = preset.steps
        if self.preset == "accurate" and n <= 64:
            steps = ACCURATE_STEPS_UP_TO_64
        return local_search.tabu(problem, seed, int(steps * n), preset.restarts)

    def get_config(self):
        return {"preset": self.preset}
