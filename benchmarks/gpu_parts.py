"""The parts of `gpu.py`, in order: what each runs, for how long, and what it needs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Tests of tests/training/test_gpu.py by name, or a script of this folder, with other arguments on a CPU; for how
    many seconds it may run, and the packages that it needs beside torch and numpy."""

    name: str
    what: str
    seconds: float
    tests: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


OURS = ("pydantic", "ruamel.yaml", "pyarrow", "PIL", "scipy")
"""What a training imports."""
IMAGES_TOO = (*OURS, "torchvision")
TESTS = (*OURS, "matplotlib", "pytest")
SEARCH = (*OURS, "ray", "optuna", "mlflow", "typer", "rich", "matplotlib")
STARVATION = ("gpu_starvation.py", "--rounds", "2", "--images", "1024")
ON_CPU = (
    *("--images", "32", "--steps", "2", "--windows", "1", "--rounds", "1", "--threads", "1"),
    *("--precision", "float32"),  # many processors have no bf16: it takes ten times as long there
)
PARTS = (
    Part("environment", "torch finds the GPU and computes on it", 40, script=("gpu_figures.py", "environment")),
    Part(
        "everything",
        "every method trains in float32 and bf16, every backbone in bf16, as a trial does",
        75,
        script=("gpu_trainings.py", "everything"),
        needs=OURS,
    ),
    Part(
        "steps",
        "ms a step: ResNet-50, ViT-S; float32, TF32, bf16; repeatable or not; images from the store, and from memory",
        130,
        script=("gpu_trainings.py", "steps"),
        needs=IMAGES_TOO,
    ),
    Part(
        "validation",
        "60,502 photographs embedded by ResNet-50; their metrics, all among all, by faiss and by torch",
        80,
        script=("gpu_trainings.py", "validation"),
        needs=IMAGES_TOO,
    ),
    Part(
        "sharing",
        "16 trainings: one at a time has the GPU, two and four share it; bare processes",
        60,
        script=("gpu_trainings.py", "sharing"),
        needs=OURS,
    ),
    Part(
        "trials",
        "a search of 16 trials: one at a time has the GPU, two and four share it",
        110,
        script=("gpu_figures.py", "trials"),
        needs=SEARCH,
    ),
    Part("energy", "PFML's energy, beside its two products", 45, script=("gpu_figures.py", "energy"), needs=OURS[:1]),
    Part(
        "fused",
        "Triton kernels: the energy of 1,000,000 points and a softmax over 1,000,000 classes, beside torch",
        180,
        script=("gpu_figures.py", "fused"),
        needs=("pydantic", "triton"),
    ),
    Part(
        "kernels",
        "Triton kernels: right to float32, the same bits twice, linear memory, trainings",
        150,
        tests=(
            "test_kernels_are_right_to_float32",
            "test_kernels_give_the_same_bits_twice",
            "test_memory_of_kernels_grows_with_the_points",
            "test_a_training_by_kernels_is_that_by_torch",
        ),
        needs=(*TESTS, "triton"),
    ),
    Part(
        "costs",
        "ms of every method's step without a backbone's, with 100 and 10,000 classes (PFML and CPML: 100)",
        90,
        script=("gpu_figures.py", "costs"),
        needs=OURS,
    ),
    Part(
        "methods",
        "every method and variant in float64 equals the CPU",
        150,
        tests=("test_float64_equals_the_cpu", "test_the_tree_of_hier_is_the_cpu_s"),
        needs=TESTS,
    ),
    Part(
        "precisions",
        "bf16, fp16, channels-last, compile",
        180,
        tests=("test_half_precision_layouts_and_compilation_train",),
        needs=TESTS,
    ),
    Part(
        "resuming",
        "an interrupted training goes on, to 0.1%; the same seed gives the same bits, or the cause is named",
        90,
        tests=(
            "test_resuming_is_exact_on_the_gpu",
            "test_the_same_seed_gives_the_same_bits_or_the_cause_is_named",
        ),
        needs=TESTS,
    ),
    Part(
        "waiting",
        "a step does not wait; bytes become the CPU's floats",
        40,
        tests=("test_a_step_does_not_wait", "test_a_planted_wait_is_seen", "test_bytes_become_the_cpu_s_floats"),
        needs=TESTS,
    ),
    Part(
        "evaluation",
        "the CPU's metrics and energy; memory of a search; faiss's neighbours; out of memory is said",
        90,
        tests=(
            "test_the_energy_is_the_cpu_s",
            "test_evaluation_is_the_cpu_s",
            "test_evaluation_against_a_gallery_keeps_to_its_memory",
            "test_faiss_searches_as_on_the_cpu",
            "test_faiss_and_torch_share_the_process",
            "test_out_of_memory_is_said_as_such",
        ),
        needs=TESTS,
    ),
    Part(
        "million",
        "20,000 queries among 1,000,000 items, by faiss and by torch",
        150,
        script=("gpu_figures.py", "million"),
        needs=("pydantic", "pyarrow", "scipy"),
    ),
    Part(
        "images",
        "ResNet-50 from the store and from memory, in turn",
        120,
        script=STARVATION,
        on_cpu=ON_CPU,
        needs=IMAGES_TOO,
    ),
    Part(
        "transformer",
        "the same with ViT-S",
        120,
        script=(*STARVATION, "--backbone", "vit_small"),
        on_cpu=ON_CPU,
        needs=(*IMAGES_TOO, "timm"),
    ),
    Part("workers", "a training over two GPUs (NCCL)", 120, script=("gpu_figures.py", "workers"), needs=SEARCH),
)
"""Those before `fused` come first, and fit into nine minutes."""
