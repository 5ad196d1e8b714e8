import re

import pytest


@pytest.mark.once
def test_suite_under_legacy_keras(legacy_run):
    output, _ = legacy_run.communicate()
    print(output)
    assert legacy_run.returncode == 0, output[-4000:]
    passed = int(re.search(r"(\d+) passed", output).group(1))
    assert passed > 100
