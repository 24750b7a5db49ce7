"""FrontierPhysics research tasks as Gymnasium environments.

Importing fpenv registers `FrontierPhysics/<task>` for every task that comes with it. It imports nothing heavy.
"""

from gymnasium.envs.registration import register, registry

from fpenv.names import NAMESPACE, list_tasks

__version__ = "0.1.0"


def _register() -> None:
    for name in list_tasks():
        if f"{NAMESPACE}/{name}" not in registry:
            register(f"{NAMESPACE}/{name}", entry_point="fpenv.env:FrontierPhysicsEnv", kwargs={"task": name})


_register()
