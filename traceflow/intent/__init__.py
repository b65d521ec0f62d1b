"""What must be done: meshes, how arrays are meant to lie on them, and what that implies.

What authors state of their programs is made of three names: `from traceflow.intent import Mesh, Spec, intent`.
"""

from traceflow.intent.intent import Intent, intent
from traceflow.intent.mesh import Mesh
from traceflow.intent.spec import Spec

__all__ = ["Intent", "Mesh", "Spec", "intent"]
