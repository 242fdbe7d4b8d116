"""How kiln is proved, and what a user's tests draw and compare with: `make_tensor`, `assert_close`.

Nothing in kiln imports it. Comparisons, layouts, gradient checks and random programs.
"""

from kiln.testing.assertions import assert_allclose as assert_allclose
from kiln.testing.assertions import assert_close as assert_close
from kiln.testing.creation import make_tensor as make_tensor
