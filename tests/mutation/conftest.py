# SPDX-License-Identifier: Apache-2.0
"""The modules here import one another by bare name, since `full_run.py` runs as a script."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
