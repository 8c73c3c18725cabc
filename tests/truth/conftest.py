# SPDX-License-Identifier: Apache-2.0
"""The unit kernels' modules import one another by bare name, since `record.py` runs as a script on a bare machine."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
