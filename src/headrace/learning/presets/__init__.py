"""What the built-in algorithms declare: what they learn from, what their settings start with, which settings they refuse.

`presets/NAME.py` belongs to the algorithm in `learning/NAME.py`. They are apart because the command line needs the presets, and
must not wait for the import of torch. Importing this package makes the algorithms known, in the order of the help.

| name | here | the algorithm |
| --- | --- | --- |
| `appo`, `ppo`, `impala`, `a2c` | `policy_gradient.py` | `learning/policy_gradient.py` |
| `apex-dqn` | `apex_dqn.py` | `learning/apex_dqn.py` |
| `apex-dpg` | `apex_dpg.py` | `learning/apex_dpg.py` |
| `pqn` | `pqn.py` | `learning/pqn.py` |
| `r2d2` | `r2d2.py` | `learning/r2d2.py` |
| `dqn`, `rainbow` | `dqn.py` | `learning/dqn.py` |
"""

from dataclasses import replace

from headrace.learning.algorithm import declare
from headrace.learning.presets import apex_dpg, apex_dqn, dqn, policy_gradient, pqn, r2d2

for _module in (policy_gradient, apex_dqn, apex_dpg, pqn, r2d2, dqn):
    for _declaration in _module.DECLARATIONS:
        declare(replace(_declaration, built_in=True))
