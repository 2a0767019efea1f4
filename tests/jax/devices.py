"""Eight virtual devices of the CPU; import it before anything asks JAX for its devices."""

import jax
from jax.sharding import Mesh

from cpplm.jax.mesh import make_mesh
from cpplm.train.settings import MESH_AXES

if jax.config.jax_num_cpu_devices != 8:
    jax.config.update("jax_num_cpu_devices", 8)


def mesh_of(**axes: int) -> Mesh:
    """A mesh of these sizes over the first devices."""
    return make_mesh({axis: axes.get(axis, 1) for axis in MESH_AXES}, jax.devices("cpu"))
