"""Variants of tests that run only with `-m slow`, to keep the suite short.

Another variant of each test stays in the default run. A test that is slow in
all variants has the marker `slow` at its definition.
"""

import re

PATTERNS = (
    # Compiling a whole model with XLA is slow.
    r"test_precision\.py::test_non_finite_batch_is_skipped\[.*jit_compile",
    # The default run has the same test in the other mode (graph or eager).
    r"test_precision\.py::test_mixed_precision_on_two_replicas\[eager",
    # Other optimizers and options that use the same code.
    r"test_saving\.py::test_frozen_layers\[bop-(one|born|all)",
    r"test_saving\.py::test_frozen_layers\[qpsbgd-(born|all)",
    r"test_saving\.py::test_hdf5\[(ema|signum|bop)",
    r"test_saving\.py::test_save_load_continue\[None",
    r"test_misuse\.py::test_real_optimizer_of_the_user.*\[(Prox|Bop|Sign)",
    r"test_misuse\.py::test_learning_rate_that_is_not_finite\[QPSBGD-inf",
    r"test_memory\.py::test_our_optimizers_free_their_steps\[(ridge|bop)",
    r"test_kills\.py::test_kill_between_weights_and_epoch\[3-",
    # Slower presets, and chips with many dead qubits.
    r"test_fast_paths\.py::test_states_are_seeded_and_never_ascend\[balanced",
    r"test_fast_paths\.py::test_search_is_no_worse.*\[accurate",
    r"test_backends\.py::test_search_is_nearly_exact_at_20\[.*accurate",
    r"test_backends\.py::test_compiled_search_equals_plain_search\[exact",
    r"test_cliques\.py::test_number_of_copies\[zephyr-12-223-10-(16|8)-",
    r"test_blocks\.py::test_gap_with_300_inputs_and_blocks_of_64\[(pm1|sparse)",
    # One training with all faults covers them.
    r"test_faults\.py::test_each_fault_with_raise\[(?!structure|403|offline|429|broken)",
    r"test_faults\.py::test_one_training_with_all_faults\[hold",
    # Combinations of other variants.
    r"test_precision\.py::test_accumulation_in_any_precision\[float16",
    r"test_callbacks\.py::test_backup_and_restore\[(?!keras_qpsbgd)",
    r"test_experiments\.py::test_experiment_runs\[direction",
    r"test_experiments\.py::test_runs_depend_.*\[mnist",
    r"test_convergence\.py::test_training_is_not_affected\[2",
    r"test_convergence\.py::test_fit\[graph",
    r"test_convergence\.py::test_finds_exactly.*\[exact",
    r"test_full_gradient\.py::test_a_step_in_a_graph.*\[shared",
    r"test_metrics\.py::test_fit\[(last|adam|host)",
    # The demo trains the same kind of network.
    r"test_examples\.py::test_quickstart",
    r"test_bench\.py::test_measure_step",
    r"test_qpu\.py::test_64_columns_of_16_inputs",
    r"test_full_gradient\.py::test_mixed_precision_and_replicas",
    r"test_qubo_recorder\.py::test_two_replicas\[sign",
    r"test_saving\.py::test_frozen_layers\[adam-(born|all)",
    r"test_examples\.py::test_custom_loop",
    r"test_large_constants\.py::.*local_optimum.*accurate",
    # Other ways to train that record and measure through the same code.
    r"test_qubo_recorder\.py::test_all_backends\[(ridge|annealing|gurobi|dimod)",
    r"test_qubo_recorder\.py::test_(eager\[sign|several|accumulation|loss_scale|model)",
    r"test_qubo_recorder\.py::test_qubo_is_that_of_definition_1\[300",
    r"test_recorder_lifetime\.py::test_(evaluate|xla|failed)",
    r"test_solver_logs\.py::test_(retries|fallbacks)",
    r"test_full_gradient\.py::test_a_training_step.*\[(shared|wide)",
    r"test_full_gradient\.py::test_(a_step_in_a_graph|eager_gradients)",
    r"test_full_gradient\.py::test_batches_add_up\[(300|5-averaged-sum\])",
    r"test_convergence\.py::test_(training_is_not_affected|fit\[eager)",
    r"test_metrics\.py::test_(fit\[mixed|steps_per|custom_loop|saved)",
    # Other numbers of bits, equations and layers.
    r"test_numerics\.py::test_enumerated_optimum\[[234].*dwave",
    r"test_numerics\.py::test_qubo_is_never.*\[(True|False)-[24]-layer",
    r"test_einsum_dense\.py::test_a_step_equals.*\[2-channel-(\.\.\.|abcd)",
    r"test_several_bits\.py::test_(two_replicas|fixed_points)",
    r"test_several_bits\.py::test_optimizers_lower_the_loss\[<lambda>[23]",
    r"test_multi_head_attention\.py::test_every_projection",
)
_SLOW = re.compile("|".join(PATTERNS))


def unused(names):
    """Returns the patterns that match no test."""
    return [p for p in PATTERNS if not any(re.search(p, n) for n in names)]


def is_slow(name):
    """Returns whether the test with this name is a slow variant."""
    return _SLOW.search(name) is not None
