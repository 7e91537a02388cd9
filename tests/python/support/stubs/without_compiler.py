"""Import it before an optimizer is made, which imports torch's compiler.

That takes as long as importing torch itself, and the tests' scripts do not compile.
"""

import sys
from unittest.mock import MagicMock

sys.modules["torch._dynamo"] = MagicMock(disable=lambda function, *_, **__: function)
