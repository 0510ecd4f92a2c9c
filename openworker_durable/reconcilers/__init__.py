"""Reconcilers that come with this package, for tools whose truth is on this machine.

They are asked about OpenWorker's own file tools, and about shell commands that are recognisably
one `git commit` or one `git push`. They only read.
"""

from __future__ import annotations

from ..declare import Declaration
from ..policy import reconcile
from . import files, git

BUILT_IN: dict[str, Declaration] = {
    **{name: Declaration(reconcile(), made) for name, made in files.RECONCILERS.items()},
    "run_shell": Declaration(reconcile(), git.RECONCILER),
}
"""What is declared about tools of the host, by name; a person or a connector may say otherwise."""
