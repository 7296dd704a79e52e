"""What the built-in algorithms declare: what they learn from, what their settings start with, which settings they refuse.

They are apart from the algorithms because the command line needs them, and must not wait for the import of torch. Importing this
package makes the algorithms known.

| name | here | the algorithm |
| --- | --- | --- |
| `appo`, `ppo`, `impala`, `a2c` | `policy_gradient.py` | `learning/policy_gradient.py` |
| `apex-dqn`, `apex-dpg`, `r2d2` | `apex.py` | `learning/apex_dqn.py`, `apex_dpg.py`, `r2d2.py` |
| `pqn` | `pqn.py` | `learning/pqn.py` |
| `dqn`, `rainbow` | `dqn.py` | `learning/dqn.py` |
"""

from dataclasses import replace

from headrace.learning.algorithm import declare
from headrace.learning.presets import apex, dqn, policy_gradient, pqn

for _module in (policy_gradient, apex, pqn, dqn):
    for _declaration in _module.DECLARATIONS:
        declare(replace(_declaration, built_in=True))
