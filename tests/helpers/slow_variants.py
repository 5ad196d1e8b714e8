"""Variants of tests that run with `-m slow` alone, to keep the suite short.

Another variant of each stays in the short run. What is long as a whole has the
marker `slow` where it is defined.
"""

import re

PATTERNS = (
    # Wide layers take other code than narrow ones; `test_fit` runs both.
    r"test_equalities\.py::(?!test_fit\[wide-\{\}\]).*\[wide",
    r"test_replicas\.py::test_wide_layers_on_two_replicas\[ridge",
    r"test_replicas\.py::test_two_replicas\[.*host",
    r"test_replicas\.py::test_one_replica\[one device",
    # A model that is compiled whole by XLA takes long to compile.
    r"test_rounding_noise\.py::.*jit_compile",
    r"test_precision\.py::test_non_finite_batch_is_skipped\[.*jit_compile",
    # In a graph, where the same runs eagerly, or the other way round.
    r"test_precision\.py::test_mixed_precision_on_two_replicas\[eager",
    r"test_loops\.py::test_a_gan\[eager",
    r"test_loops\.py::test_replicas_in_a_custom_loop\[scaled",
    r"test_loops\.py::test_replicas_in_a_custom_loop\[plain-eager",
    r"test_loops\.py::test_a_step_that_loss_scaling_skips.*\[replicas",
    # Other optimizers and options along the same way.
    r"test_saving\.py::test_frozen_layers\[bop-(one|born|all)",
    r"test_saving\.py::test_frozen_layers\[qpsbgd-(born|all)",
    r"test_saving\.py::test_hdf5\[(ema|signum|bop)",
    r"test_saving\.py::test_save_load_continue\[None",
    r"test_misuse\.py::test_the_real_optimizer_of_the_user.*\[(Prox|Bop|Sign)",
    r"test_misuse\.py::test_learning_rate_that_is_not_finite\[QPSBGD-inf",
    r"test_memory\.py::test_our_optimizers_free_their_steps\[(ridge|bop)",
    r"test_kills\.py::test_kill_between_weights_and_epoch\[3-",
    # Slower presets, and chips with many dead qubits.
    r"test_fast_paths\.py::test_seeded_never_ascending_and_held\[balanced",
    r"test_fast_paths\.py::test_search_is_no_worse.*\[accurate",
    r"test_backends\.py::test_search_is_nearly_exact_at_20\[.*accurate",
    r"test_backends\.py::test_both_forms_and_no_xla\[exact",
    r"test_embedding\.py::test_number_of_copies\[zephyr-12-223-10-(16|8)-",
)
_SLOW = re.compile("|".join(PATTERNS))


def is_slow(name):
    """Whether the test of that name is such a variant."""
    return _SLOW.search(name) is not None
