"""A fake NVIDIA driver: libnvidia-ml.so.1 compiled from tests/data/nvml, told by the test what its GPUs say."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from tests.places import DATA
from trainwarden.collectors.nccl_profiler.build import compiler

SOURCE = DATA / "nvml" / "fake_nvml.c"
XID = 8  # nvmlEventTypeXidCriticalError

# A healthy data-centre GPU under load; keys are those of fake_nvml.c, in NVML's own units.
HEALTHY: dict[str, int] = {
    "util_gpu": 97, "util_mem": 45, "encoder": 0, "decoder": 0, "clock_1": 1755, "clock_2": 2619, "clock_max_1": 1980,
    "event_reasons": 0, "temperature": 62, "threshold_0": 95, "threshold_1": 92, "power_mw": 640_000,
    "power_limit_mw": 700_000, "energy_mj": 5_000_000, "pstate": 0, "pcie_replay": 0, "mem_total": 150_000_000_000,
    "mem_reserved": 600_000_000, "mem_free": 49_400_000_000, "mem_used": 100_000_000_000, "bar1_used": 1_000_000,
    "pcie_kb_0": 2_000_000, "pcie_kb_1": 1_000_000, "pcie_gen": 5, "pcie_gen_max": 5, "pcie_width": 16,
    "pcie_width_max": 16, "ecc_0_0": 0, "ecc_1_0": 0, "ecc_0_1": 3, "ecc_1_1": 0, "remapped_corr": 0,
    "remapped_unc": 0, "remapped_pending": 0, "remapped_failure": 0, "nvlinks": 18, "field_82": 71, "field_38": 0,
    "field_52": 0, "field_59": 0, "field_138": 1_000, "field_139": 2_000, "field_173": 0, "field_230": 0,
    "violation_0_ns": 0, "violation_1_ns": 0, "processes": 1, "event_types": XID, "fabric_state": 3,
    "fabric_health": 0x1AA, "fabric_summary": 1, "mig_mode": 0, "gpm": 1, "gpm_clock": 0,
    **dict.fromkeys(("gpm_1", "gpm_2", "gpm_3", "gpm_5", "gpm_10", "gpm_20", "gpm_21", "gpm_60", "gpm_61"), 0),
}  # fmt: skip


def of_instance(value: int, instance: int | None) -> int:
    """A process id or the data of an event that belongs to a MIG instance, as the script has it."""
    return value if instance is None else (instance + 1) << 32 | value


@functools.cache
def _compiled(old_driver: bool) -> bytes:
    """The library; every test gets a copy, which the loader takes for another one."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "fake.so"
        options = ["-DOLD_DRIVER"] if old_driver else []
        command = [*compiler(), "-O1", "-shared", "-fPIC", *options, "-o", str(library), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise AssertionError(f"the fake NVML does not compile:\n{done.stderr}")
        return library.read_bytes()


class FakeNvml:
    """The library and its script in one folder.

    Parameters
    ----------
    folder : Path
        Gets ``lib/libnvidia-ml.so.1`` and ``nvml.txt``.
    gpus : int
        How many healthy GPUs there are at first.
    old_driver : bool
        Leave out the functions that came with driver 510 and later.

    Raises
    ------
    NoCompilerError
        If there is no C compiler (`trainwarden.collectors.nccl_profiler.build`).
    """

    def __init__(self, folder: Path, gpus: int = 8, *, old_driver: bool = False) -> None:
        self.library = folder / "lib" / "libnvidia-ml.so.1"
        self._state = folder / "nvml.txt"
        self._gpus = [dict(HEALTHY) for _ in range(gpus)]
        self._count = gpus
        self._init_error = 0
        self._events: list[str] = []
        self.library.parent.mkdir(parents=True, exist_ok=True)
        self.library.write_bytes(_compiled(old_driver))
        self.write()

    def environ(self) -> dict[str, str]:
        """What a process needs in its environment to load this library instead of the driver's."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_STATE": str(self._state)}

    @staticmethod
    def uuid(gpu: int) -> str:
        """The UUID of a GPU."""
        return f"GPU-{0xFA4E0000 + gpu:08x}-0000-4000-8000-{gpu:012x}"

    def set(self, gpu: int, **values: int | None) -> None:
        """Change values of one GPU, at once; None means that it does not support that."""
        for key, value in values.items():
            if value is None:
                self._gpus[gpu].pop(key, None)
            else:
                self._gpus[gpu][key] = value
        self.write()

    def fail(self, gpu: int, key: str, code: int) -> None:
        """Let every question for `key` fail with an nvmlReturn_t code."""
        self._gpus[gpu][f"{key}!"] = code
        self.write()

    def lose(self, gpu: int) -> None:
        """Let a GPU fall off the bus."""
        self.set(gpu, lost=1)

    def xid(self, gpu: int, code: int, *, instance: int | None = None) -> None:
        """Deliver an Xid event, of a MIG instance if it is given."""
        self._events.append(f"event {len(self._events) + 1} {gpu} {XID} {of_instance(code, instance)}")
        self.write()

    def storm(self, gpu: int, code: int, events: int) -> None:
        """Deliver many events at once."""
        first = len(self._events) + 1
        self._events += [f"event {number} {gpu} {XID} {code}" for number in range(first, first + events)]
        self.write()

    def divide(self, gpu: int, *instances: int, made: int = 1) -> None:
        """Switch MIG on, and divide the GPU into these instances; none of what was there before is left."""
        values = self._gpus[gpu]
        for key in [key for key in values if key.startswith("mig_")]:
            del values[key]
        values["mig_mode"] = 1
        for place, number in enumerate(instances):
            values |= {f"mig_at_{place}": number, f"mig_{number}_made": made}
            values |= {f"mig_{number}_{key}": values[key] // 8 for key in values if key.startswith(("mem_", "gpm_"))}
        self.write()

    def work(self, gpu: int, ticks: int, *, prefix: str = "", **done: int) -> None:
        """Let the performance counters run on by so many ticks of their clock, and ``gpm_M`` by what was done."""
        for key, more in {"gpm_clock": ticks, **done}.items():
            self._gpus[gpu][prefix + key] += more
        self.write()

    def set_count(self, gpus: int) -> None:
        """Let the driver list so many of its GPUs."""
        self._count = gpus
        self.write()

    def start_error(self, code: int) -> None:
        """Let nvmlInit fail with an nvmlReturn_t code."""
        self._init_error = code
        self.write()

    def write(self) -> None:
        """Put everything into the script in one step."""
        lines = [f"count {self._count}", f"init_error {self._init_error}", *self._events]
        for index, gpu in enumerate(self._gpus):
            lines += [f"{index} {key} {value}" for key, value in gpu.items()]
        part = self._state.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n")
        part.replace(self._state)
