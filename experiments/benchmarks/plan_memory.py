"""The memory that `lmrep plan` predicts for devices of the CPU, against what steps take.

    python experiments/benchmarks/plan_memory.py

Each setting runs in a process of its own: it plans the step, creates the training state, and runs two steps. Measured
is the size of the state plus the growth of the peak resident set from before the first step; predicted is the plan's
sum over all devices, without the program. Steps are above 1 GB, so that allocators and threads matter little.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

SETTINGS = {
    "BERT mini, data": ("bert.py:model=bert_mini,mesh=4x1x1", 4, "batch_size=128"),
    "BERT mini, fsdp": ("bert.py:model=bert_mini,mesh=1x4x1", 4, "batch_size=128"),
    "BERT mini, remat": ("bert.py:model=bert_mini,mesh=4x1x1", 4, "batch_size=256", "execution.remat=full"),
    "BERT small, 2x2, 4 microbatches": ("bert.py:model=bert_small,mesh=2x2x1", 4, "batch_size=128", "microbatches=4"),
    "GPT-2 tiny, one device": ("gpt2.py:size=tiny,mesh=1x1x1", 1, "batch_size=512"),
}


def measure(page, devices, fields):
    """Runs in its own process. Returns bytes: predicted, state, growth."""
    import jax
    import numpy as np

    jax.config.update("jax_num_cpu_devices", devices)
    from functools import partial

    from lmrep.core.sharding import make_mesh, use_mesh
    from lmrep.experiment import config as experiments
    from lmrep.experiment import shapes
    from lmrep.interop.checkpoint_config import load_config
    from lmrep.planning import hardware, plan
    from lmrep.training.state import create, layout
    from lmrep.training.step import compiled_train_step

    file, _, argument = page.partition(":")
    config = load_config(str(Path(__file__).parents[1] / file), argument,
                         [("stages", "()"), *(field.split("=", 1) for field in fields)])
    experiment = experiments.parse(config)
    chip = hardware.Chip("CPU device", 0, 1.0, 1.0, 1.0, 1.0, 0, 1)
    mesh = make_mesh(*experiments.check_mesh(experiment, devices))
    one = shapes.without_data(experiment, None, mesh)[0]
    batch_struct, stage = shapes.batch(one, mesh), one.stage
    planned, = plan.plan_stages([one], mesh, hardware.Hardware("cpu", chip, jax.devices()))
    predicted = (planned.memory.needed - planned.memory.program) * mesh.size
    random = np.random.default_rng(0)
    batch = jax.tree.map(lambda x: jax.device_put(random.integers(0, 2, x.shape).astype(x.dtype), x.sharding),
                         batch_struct)
    with use_mesh(mesh):
        shardings = layout(stage.objective, stage.optimizer, stage.batch_size, mesh)
        state = jax.jit(partial(create, stage.objective, stage.optimizer, stage.batch_size, 0),
                        out_shardings=shardings)()
        step = compiled_train_step(stage.objective, stage.optimizer, mesh, stage.batch_size, 0, stage.microbatches)
        step = step.lower(state, batch).compile()
        jax.block_until_ready(state)
        held = sum(shard.data.nbytes for x in jax.tree.leaves((state, batch)) for shard in x.addressable_shards)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
        before = resident("VmRSS")
        for _ in range(2):
            state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
    return {"predicted": predicted, "state": held, "growth": resident("VmHWM") - before}


def resident(field):
    """Bytes, of a field of /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", default="", help="one of the table; by default all, each in its own process")
    name = parser.parse_args().setting
    if name:
        page, devices, *fields = SETTINGS[name]
        print(json.dumps(measure(page, devices, fields)))
        return
    print("| setting | predicted, GB | state + growth of the peak, GB | ratio |\n| --- | --- | --- | --- |")
    for name in SETTINGS:
        result = subprocess.run([sys.executable, __file__, f"--setting={name}"], capture_output=True, text=True,
                                env={**os.environ, "JAX_PLATFORMS": "cpu"})
        if result.returncode:
            raise SystemExit(f"{name}\n{result.stderr}")
        found = json.loads(result.stdout.splitlines()[-1])
        measured = found["state"] + found["growth"]
        print(f"| {name} | {found['predicted'] / 1e9:.2f} | {measured / 1e9:.2f} | "
              f"{found['predicted'] / measured:.3f} |", flush=True)


if __name__ == "__main__":
    main()
