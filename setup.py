"""What pyproject.toml cannot say: wheels carry NCCL's profiler plug-in, compiled where there is a C compiler.

``TRAINWARDEN_PURE=1`` leaves it out, for a wheel of every platform.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

PURE = os.environ.get("TRAINWARDEN_PURE") == "1"
PLACE = Path("trainwarden") / "collectors" / "nccl_profiler"


def builder() -> ModuleType:
    """`trainwarden.collectors.nccl_profiler.build`, without the packages above it: what they import is not here."""
    spec = importlib.util.spec_from_file_location("nccl_profiler_build", Path(__file__).parent / PLACE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithPlugin(build_py):
    """Compiles the plug-in into the tree that becomes the wheel."""

    def run(self) -> None:
        super().run()
        if self.editable_mode or PURE:
            return  # `make install` builds it in place
        build = builder()
        target = Path(self.build_lib) / PLACE / build.LIBRARY.name
        try:
            self.mkpath(str(target.parent))
            build.build(target)
        except build.NoCompilerError as error:
            target.unlink(missing_ok=True)
            self.announce(str(error), level=3)


class WithCompiler(Distribution):
    """With a compiled plug-in this is of a platform."""

    def has_ext_modules(self) -> bool:
        if PURE:
            return False
        build = builder()
        try:
            build.compiler()
        except build.NoCompilerError:
            return False
        return True


class WheelForAnyPython(bdist_wheel):
    """Of a platform, perhaps, but nothing compiled knows Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(distclass=WithCompiler, cmdclass={"build_py": BuildWithPlugin, "bdist_wheel": WheelForAnyPython})
