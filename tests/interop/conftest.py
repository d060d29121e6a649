"""The reference implementation, which takes seconds to import, is for the live comparisons alone."""

import sys

import pytest
import scipy.stats  # noqa: F401 - looks at torch when it is imported


@pytest.fixture(scope="module", autouse=True)
def reference(request):
    """Whatever is installed, `import torch` fails outside of `test_live*.py`."""
    with pytest.MonkeyPatch.context() as patch:
        if "test_live" not in request.module.__name__:
            patch.setitem(sys.modules, "torch", None)
        yield
