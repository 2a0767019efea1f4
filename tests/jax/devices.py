"""Eight virtual devices of the CPU; import it before anything asks JAX for its devices."""

import math

import jax
import numpy as np
from jax.sharding import Mesh

if jax.config.jax_num_cpu_devices != 8:
    jax.config.update("jax_num_cpu_devices", 8)


def mesh_of(**axes: int) -> Mesh:
    """A mesh of these sizes over the first devices."""
    count = math.prod(axes.values())
    return Mesh(np.asarray(jax.devices("cpu")[:count]).reshape(tuple(axes.values())), tuple(axes))
