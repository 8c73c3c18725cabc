# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.cli: the `opdeck` command. `main` is its console script."""

from opdeck.core.cli.main import main

__all__ = ["main"]
