"""Settings of the augmentations of torchvision."""

from typing import Any

GIVEN: dict[str, dict[str, Any]] = {
    "color_jitter": {"brightness": 0.4, "contrast": [0.5, 1.5], "saturation": 0.3, "hue": 0.1},
    "gaussian_blur": {"kernel_size": 5, "sigma": [0.1, 3.0]},
    "random_adjust_sharpness": {"sharpness_factor": 4},
    "random_affine": {"degrees": 20, "translate": [0.2, 0.1], "scale": [0.8, 1.2], "shear": 5},
    "random_posterize": {"bits": 3},
    "random_rotation": {"degrees": 40},
    "random_solarize": {"threshold": 100},
    "random_erasing": {"scale": [0.1, 0.2], "value": 7, "p": 0.6},
    "rand_augment": {"num_ops": 3, "magnitude": 12},
}
